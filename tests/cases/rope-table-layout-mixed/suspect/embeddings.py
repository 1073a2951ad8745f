import torch
import torch.nn as nn


class RotaryEmbedding(nn.Module):
    def __init__(self, head_dim, base=10000.0):
        super().__init__()
        exponent = -torch.arange(0, head_dim, 2).float() / head_dim
        self.register_buffer("inv_freq", base ** exponent, persistent=False)

    def forward(self, length):
        t = torch.arange(length).float()
        freqs = torch.outer(t, self.inv_freq)
        emb = torch.cat((freqs, freqs), dim=-1)
        return emb.cos(), emb.sin()


def rotate_half_codec(x):
    x1, x2 = x.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((-x2, x1), dim=-1).flatten(-2)


def apply_rotary(q, k, cos, sin):
    q_rot = q * cos + rotate_half_codec(q) * sin
    k_rot = k * cos + rotate_half_codec(k) * sin
    return q_rot, k_rot
