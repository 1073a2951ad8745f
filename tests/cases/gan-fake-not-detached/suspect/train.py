from contextlib import contextmanager

import torch
import torch.nn.functional as F

from nets import Perceptron


@contextmanager
def frozen(module):
    module.requires_grad_(False)
    yield
    module.requires_grad_(True)


class AdversarialTrainer:
    def __init__(self, seed=21):
        torch.manual_seed(seed)
        self.gen, self.disc = Perceptron(4, 32, 32, 2), Perceptron(2, 32, 32, 1)
        self.opts = [torch.optim.Adam(net.parameters(), lr=1e-3, betas=(0.5, 0.99)) for net in (self.disc, self.gen)]
        self.rng = torch.Generator().manual_seed(seed + 1)

    def draw(self):
        angle = torch.rand(32, generator=self.rng) * 6.2831853
        return torch.stack([angle.cos(), angle.sin()], 1), torch.randn(32, 4, generator=self.rng)

    def train_discriminator(self, real, z):
        fake = self.gen(z)
        on_real = F.softplus(-self.disc(real)).mean()
        on_fake = F.softplus(self.disc(fake)).mean()
        loss_d = on_real + on_fake
        loss_d.backward(retain_graph=True)
        self.opts[0].step()
        return fake, loss_d.item()

    def train_generator(self, fake):
        with frozen(self.disc):
            loss_g = F.softplus(-self.disc(fake)).mean()
            loss_g.backward()
        self.opts[1].step()
        return loss_g.item()

    def iteration(self):
        for opt in self.opts:
            opt.zero_grad()
        fake, d = self.train_discriminator(*self.draw())
        return d, self.train_generator(fake)


if __name__ == "__main__":
    trainer = AdversarialTrainer()
    for it in range(4):
        d, g = trainer.iteration()
        print(f"it {it} D loss {d:.6f} G loss {g:.6f}")
