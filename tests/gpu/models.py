"""The trainings whose steps are timed: GPTs of DESIGN 13, and a Llama of Hugging Face of about a billion parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass(frozen=True)
class Size:
    """A training's size; attention heads are 64 wide."""

    layers: int
    width: int
    context: int
    batch: int
    vocab: int = 50304

    def __str__(self) -> str:
        return f"{self.layers} layers, d{self.width}, T{self.context}, B{self.batch}, {self.vocab} words"


SIZES = {"a": Size(12, 768, 1024, 8), "b": Size(8, 2048, 2048, 4), "c": Size(16, 2048, 2048, 2, 128256)}
TINY = {"a": Size(2, 64, 32, 2, 128), "b": Size(2, 128, 32, 2, 128), "c": Size(2, 128, 32, 2, 128)}
TITLES = {"a": "GPT", "b": "GPT, larger", "c": "Llama (Hugging Face), about 1.2 B parameters"}


class Block(nn.Module):
    """Pre-norm attention and a wide layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = width // 64
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x_btd: torch.Tensor) -> torch.Tensor:
        """[batch, time, width] in and out."""
        b, t, d = x_btd.shape
        q, k, v = (part.view(b, t, self.heads, -1).transpose(1, 2) for part in self.qkv(self.norm1(x_btd)).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d)
        x_btd = x_btd + self.out(mixed)
        return x_btd + self.down(F.gelu(self.up(self.norm2(x_btd))))


class Gpt(nn.Module):
    """Embeddings, blocks, head."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(size.vocab, size.width), nn.Embedding(size.context, size.width)
        self.blocks = nn.ModuleList([Block(size.width) for _ in range(size.layers)])
        self.norm, self.head = nn.LayerNorm(size.width), nn.Linear(size.width, size.vocab, bias=False)

    def forward(self, ids_bt: torch.Tensor) -> torch.Tensor:
        """Logits [batch, time, vocab]."""
        x_btd = self.words(ids_bt) + self.places(torch.arange(ids_bt.shape[1], device=ids_bt.device))
        for block in self.blocks:
            x_btd = block(x_btd)
        return self.head(self.norm(x_btd))


def llama(size: Size) -> nn.Module:
    """A Llama with random weights; the shape of Llama 3.2 1B at the size of part c."""
    from transformers import LlamaConfig, LlamaForCausalLM

    heads = size.width // 64
    config = LlamaConfig(
        hidden_size=size.width,
        intermediate_size=4 * size.width,
        num_hidden_layers=size.layers,
        num_attention_heads=heads,
        num_key_value_heads=max(1, heads // 4),
        vocab_size=size.vocab,
        max_position_embeddings=size.context,
        tie_word_embeddings=True,
        use_cache=False,
        attn_implementation="sdpa",
    )
    return LlamaForCausalLM(config)


def training(part: str, size: Size, device: torch.device, dtype: torch.dtype) -> tuple[nn.Module, Callable[[], torch.Tensor]]:
    """A model, and a function that does one step of its training and gives the loss (on the device; nothing is waited for)."""
    torch.manual_seed(0)
    with torch.device(device):
        default = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        model = llama(size) if part == "c" else Gpt(size)
        torch.set_default_dtype(default)
        ids = torch.randint(0, size.vocab, (size.batch, size.context + 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        if part == "c":
            loss = model(input_ids=ids[:, :-1], labels=ids[:, :-1]).loss
        else:
            loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        return loss.detach()

    return model, step
