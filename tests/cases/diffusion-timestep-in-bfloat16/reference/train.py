import torch

from unet import Denoiser

STEPS = 1000


def main():
    torch.manual_seed(30)
    model = Denoiser()
    alpha_bar = torch.cumprod(1 - torch.linspace(1e-4, 0.02, STEPS), 0)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(31)
    for it in range(5):
        x0 = torch.randn(16, 8, generator=gen)
        noise = torch.randn(16, 8, generator=gen)
        t = torch.randint(0, 125 * (it + 1), (16,), generator=gen)  # curriculum: later timesteps come in gradually
        ab = alpha_bar[t][:, None]
        xt = ab.sqrt() * x0 + (1 - ab).sqrt() * noise
        loss = (model(xt, t) - noise).square().mean()
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        print(f"it {it}: {loss.item():.9g}")


if __name__ == "__main__":
    main()
