import torch

from net import Denoiser


class Trainer:
    def __init__(self, seed):
        torch.manual_seed(seed)
        self.model = Denoiser()
        self.optimizer = torch.optim.NAdam(self.model.parameters(), lr=2e-3)
        self.gen = torch.Generator().manual_seed(seed + 1)

    def sample(self):
        clean = torch.randn(4, 9, 10, generator=self.gen).cumsum(1)
        return clean, torch.randn(4, 9, 10, generator=self.gen)

    def step(self):
        clean, noise = self.sample()
        self.optimizer.zero_grad()
        loss = (self.model(clean + noise) - noise).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss.item()


if __name__ == "__main__":
    trainer = Trainer(31)
    for step in range(4):
        print(f"step {step} loss {trainer.step():.7f}")
