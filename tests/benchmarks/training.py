"""The small GPT that benchmarks train, with the few knobs that planted faults need.

One program, whatever observes it: a detector wraps `Training(...)` and `train(...)`, nothing here knows about detectors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


@dataclass(frozen=True)
class Shape:
    """Sizes of the model and its batches; attention heads are 64 wide."""

    layers: int = 4
    width: int = 384
    vocab: int = 1024
    context: int = 128
    batch: int = 4


class Block(nn.Module):
    """One transformer block, pre-norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = max(1, width // 64)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x_btd: torch.Tensor) -> torch.Tensor:
        """Attention, then the wide layers; [batch, time, width] in and out."""
        b, t, d = x_btd.shape
        q, k, v = (part.view(b, t, self.heads, -1).transpose(1, 2) for part in self.qkv(self.norm1(x_btd)).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d)
        x_btd = x_btd + self.out(mixed)
        return x_btd + self.down(F.gelu(self.up(self.norm2(x_btd))))


class Gpt(nn.Module):
    """Embeddings, blocks, head."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(shape.vocab, shape.width), nn.Embedding(shape.context, shape.width)
        self.blocks = nn.ModuleList([Block(shape.width) for _ in range(shape.layers)])
        self.norm, self.head = nn.LayerNorm(shape.width), nn.Linear(shape.width, shape.vocab, bias=False)
        self.copy_after: int | None = None

    def forward(self, ids_bt: torch.Tensor) -> torch.Tensor:
        """Logits [batch, time, vocab] of tokens [batch, time]."""
        x_btd = self.tokens(ids_bt) + self.places(torch.arange(ids_bt.shape[1]))
        for number, block in enumerate(self.blocks):
            x_btd = block(x_btd)
            if number == self.copy_after:
                x_btd = x_btd.clone()
        return self.head(self.norm(x_btd))


class Training:
    """A model, its optimizer and a stream of batches, all from seed 0.

    Args:
        shape: Sizes.
        optimizer: Options of `torch.optim.AdamW`, ``{"fused": True}`` for example.
        copy_after: A block whose output is copied before the next one reads it: an extra operator that changes no value.
        accuracy_by_token: Whether each step also computes the mean accuracy over tokens, NaN for those that do not occur.
    """

    def __init__(
        self, shape: Shape, *, optimizer: dict[str, Any] | None = None, copy_after: int | None = None, accuracy_by_token: bool = False
    ) -> None:
        torch.manual_seed(0)
        self.shape, self.accuracy_by_token = shape, accuracy_by_token
        self.model = Gpt(shape)
        self.model.copy_after = copy_after
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4, **(optimizer or {}))
        self.accuracy: torch.Tensor | None = None

    def step(self, before_update: Callable[[Training], None] | None = None) -> float:
        """One training step.

        Args:
            before_update: Called when gradients are ready and nothing has been updated yet.

        Returns:
            The loss before the update.
        """
        ids = torch.randint(0, self.shape.vocab, (self.shape.batch, self.shape.context + 1))
        logits, targets = self.model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()
        loss = F.cross_entropy(logits, targets)
        if self.accuracy_by_token:
            self.accuracy = mean_accuracy(logits.detach(), targets, self.shape.vocab)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        if before_update is not None:
            before_update(self)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()


def mean_accuracy(logits: torch.Tensor, targets: torch.Tensor, classes: int) -> torch.Tensor:
    """Accuracy of each class, averaged over the classes that occur; NaN in between for those that do not."""
    right = (logits.argmax(-1) == targets).float()
    hits = torch.bincount(targets, weights=right, minlength=classes)
    return (hits / torch.bincount(targets, minlength=classes)).nanmean()
