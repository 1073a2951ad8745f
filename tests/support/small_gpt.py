"""A small GPT training as a program: a loop of steps with one fault planted at one of them."""

from __future__ import annotations

from pathlib import Path

SOURCE = """import os

import torch
from torch import nn
from torch.nn import functional as F

STEPS, LAYERS, FAULT = {steps}, {layers}, {fault}


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (part.view(b, t, 2, -1).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    def __init__(self, vocab=32, width=16, context=8):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocab, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList([Block(width) for _ in range(LAYERS)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)

    def forward(self, ids, scale):
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)) * scale


def main():
    torch.manual_seed(int(os.environ.get("RANK", "0")))
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(STEPS):
        ids = torch.randint(0, 32, (2, 9))
        logits = model(ids[:, :-1], 1.5 if step == FAULT else 1.25)
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


main()
"""
FAULTY_EXPRESSION = "self.head(self.norm(x)) * scale"


def write_program(folder: Path, *, steps: int, layers: int = 1, fault: int | None = None) -> Path:
    """Write ``train.py`` into a new folder.

    Args:
        folder: Absent.
        steps: Optimizer updates it makes.
        layers: Blocks of the model.
        fault: Step in which `FAULTY_EXPRESSION` multiplies with another number; None for none.
    """
    folder.mkdir(parents=True)
    (folder / "train.py").write_text(SOURCE.replace("{steps}", str(steps)).replace("{layers}", str(layers)).replace("{fault}", repr(fault)))
    return folder
