import torch
import torch.nn as nn


class NTXent(nn.Module):
    """Normalised temperature-scaled cross entropy; rows i and i + n are two views of one sample."""

    def __init__(self, n, temperature=0.5):
        super().__init__()
        self.temperature = temperature
        self.register_buffer("partner", torch.tensor([(i + n) % (2 * n) for i in range(2 * n)]))
        bias = torch.zeros(2 * n, 2 * n)
        for i in range(2 * n):
            bias[i, i] = -float("inf")
        self.register_buffer("bias", bias)

    def forward(self, z):
        norm = z.norm(2, 1, keepdim=True).clamp_min(1e-12).expand_as(z)
        z = z / norm
        sim = torch.matmul(z, z.transpose(0, 1)) / self.temperature
        sim = torch.where(self.bias == 0, sim, self.bias)
        logp = torch.log_softmax(sim, dim=-1)
        return torch.nn.functional.nll_loss(logp, self.partner)
