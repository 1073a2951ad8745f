"""A Llama written by hand: other names, other structure, the same arithmetic to the last bit.

`PLANT` puts one difference into it: `norm` (the weight is applied before the scale: the same number in exact arithmetic), `rope` (pairs
of neighbours are rotated instead of halves), `norm-backward` (a backward of its own, equal but for rounding).
"""

import math
import os

import torch
import torch.nn.functional as F
from setting import EPS, HEADS, INNER, KEY_HEADS, LAYERS, LENGTH, THETA, VOCABULARY, WIDTH, train, weight
from torch import nn

import opguard_core

PLANT, WHERE = os.environ.get("PLANT", ""), int(os.environ.get("WHERE", "1"))
HEAD = WIDTH // HEADS


class Norm(nn.Module):
    def __init__(self, name, plant=False):
        super().__init__()
        self.gain = nn.Parameter(weight(name, (WIDTH,)))
        self.plant = plant

    def forward(self, x):
        if self.plant and PLANT == "norm-backward":
            return OwnBackward.apply(x, self.gain)
        scale = torch.rsqrt(x.square().mean(-1, True) + EPS)
        if self.plant and PLANT == "norm":
            return (self.gain * x) * scale
        return self.gain * (x * scale)


class OwnBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, gain):
        scale = torch.rsqrt(x.square().mean(-1, True) + EPS)
        ctx.save_for_backward(x, gain, scale)
        return gain * (x * scale)

    @staticmethod
    def backward(ctx, grad):
        x, gain, scale = ctx.saved_tensors
        inner = grad * gain
        total = (inner * x).sum(-1, keepdim=True)
        return scale * inner - x * (scale**3 * total / WIDTH), (grad * (x * scale)).sum((0, 1))


def turned(x):
    left, right = x.chunk(2, dim=-1)
    return torch.cat((-right, left), dim=-1)


def turned_pairs(x):
    return torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)


@opguard_core.boundary("rope")
def rotate(queries, keys, cosine, sine, layer):
    turn = turned_pairs if PLANT == "rope" and layer == WHERE else turned
    return tuple(x * cosine[:, None] + turn(x) * sine[:, None] for x in (queries, keys))


class Attention(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer
        for name, out in (("q", HEADS * HEAD), ("k", KEY_HEADS * HEAD), ("v", KEY_HEADS * HEAD)):
            self.register_parameter(name, nn.Parameter(weight(f"layers.{layer}.{name}_proj", (out, WIDTH))))
        self.out = nn.Parameter(weight(f"layers.{layer}.o_proj", (WIDTH, HEADS * HEAD)))
        self.register_buffer("future", torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1), persistent=False)

    def forward(self, x, cosine, sine):
        batch, length, _ = x.shape
        queries, keys, values = (F.linear(x, w).unflatten(-1, (-1, HEAD)).transpose(1, 2) for w in (self.q, self.k, self.v))
        queries, keys = rotate(queries, keys, cosine, sine, self.layer)
        keys, values = (t.repeat_interleave(HEADS // KEY_HEADS, dim=1) for t in (keys, values))
        scores = (queries @ keys.mT) * (1 / math.sqrt(HEAD))
        weights = scores.masked_fill(self.future[:length, :length], float("-inf")).softmax(-1)
        return F.linear((weights @ values).transpose(1, 2).reshape(batch, length, -1), self.out)


class FeedForward(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.gate, self.up = (nn.Parameter(weight(f"layers.{layer}.{name}_proj", (INNER, WIDTH))) for name in ("gate", "up"))
        self.down = nn.Parameter(weight(f"layers.{layer}.down_proj", (WIDTH, INNER)))

    def forward(self, x):
        return F.linear(F.silu(F.linear(x, self.gate)) * F.linear(x, self.up), self.down)


class Block(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.before_attention = Norm(f"layers.{layer}.first_norm")
        self.attention = Attention(layer)
        self.before_feed = Norm(f"layers.{layer}.second_norm", plant=layer == WHERE)
        self.feed = FeedForward(layer)

    def forward(self, x, cosine, sine):
        x = x + self.attention(self.before_attention(x), cosine, sine)
        return x + self.feed(self.before_feed(x))


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(weight("embed_tokens", (VOCABULARY, WIDTH)))
        self.blocks = nn.ModuleList(Block(layer) for layer in range(LAYERS))
        self.final = Norm("norm")
        self.head = nn.Parameter(weight("lm_head", (VOCABULARY, WIDTH)))
        angles = torch.arange(LENGTH).float()[:, None] * (1.0 / THETA ** (torch.arange(0, HEAD, 2).float() / HEAD))
        self.register_buffer("angles", torch.cat((angles, angles), dim=-1)[None], persistent=False)

    def forward(self, tokens):
        x = F.embedding(tokens, self.table)
        cosine, sine = self.angles.cos(), self.angles.sin()
        for block in self.blocks:
            x = block(x, cosine, sine)
        return F.linear(self.final(x), self.head)


def loss_of(model, tokens):
    logits = opguard_core.probe("logits", model(tokens))
    labels = F.pad(tokens, (0, 1), value=-100)[:, 1:]
    return F.cross_entropy(logits.view(-1, VOCABULARY), labels.reshape(-1))


if __name__ == "__main__":
    model = Llama()
    train(model, model.parameters(), loss_of)
