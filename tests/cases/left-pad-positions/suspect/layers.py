import torch
import torch.nn as nn


def block(dim, heads):
    return nn.TransformerEncoderLayer(dim, heads, 64, dropout=0.0, batch_first=True, norm_first=True)


def causal_bias(length):
    return torch.full((length, length), float("-inf")).triu(1)


def padding_bias(mask):
    return torch.zeros(mask.shape).masked_fill(mask == 0, -1e9)
