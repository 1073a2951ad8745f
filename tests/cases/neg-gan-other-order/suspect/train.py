import torch

from gan import GAN


def draws(steps):
    noise = torch.Generator().manual_seed(112)
    data = torch.Generator().manual_seed(111)
    for _ in range(steps):
        z = torch.randn(12, 4, generator=noise)
        yield z, torch.randn(12, 2, generator=data) * 0.5 + 1


def main():
    torch.manual_seed(110)
    gan = GAN()
    adam = {name: torch.optim.Adam(part.parameters(), lr=1e-3, betas=(0.5, 0.999)) for name, part in gan.named_children()}
    for step, (z, real) in enumerate(draws(5)):
        d = gan.d_loss(real, z)
        adam["critic"].zero_grad()
        d.backward()
        adam["critic"].step()
        gan.critic.requires_grad_(False)
        g = gan.g_loss(z)
        adam["generator"].zero_grad()
        g.backward()
        adam["generator"].step()
        gan.critic.requires_grad_(True)
        print(step, d.item().hex(), g.item().hex())


main()
