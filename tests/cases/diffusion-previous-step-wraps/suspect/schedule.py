import torch


class NoiseSchedule:
    def __init__(self, steps, lo=1e-3, hi=0.2):
        self.betas = torch.linspace(lo, hi, steps)
        self.alphas_cumprod = (1 - self.betas).cumprod(0)

    def add_noise(self, x0, noise, t):
        bar = self.alphas_cumprod[t]
        return bar.sqrt()[:, None] * x0 + (1 - bar).sqrt()[:, None] * noise

    def posterior_variance(self, t):
        bar = self.alphas_cumprod[t]
        previous = self.alphas_cumprod[t - 1]
        return self.betas[t] * (1 - previous) / (1 - bar)
