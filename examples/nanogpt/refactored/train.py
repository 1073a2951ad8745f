"""The same training after a clean-up: a dataclass for the settings, the model and the loss in files of their own."""

import math
import sys
from dataclasses import dataclass, fields

import torch
from model import GPT
from torch.nn.utils import clip_grad_norm_


@dataclass
class Settings:
    n_layer: int = 2
    n_head: int = 2
    n_embd: int = 32
    block_size: int = 24
    vocab_size: int = 48
    dropout: float = 0.1
    batch_size: int = 4
    gradient_accumulation_steps: int = 2
    max_iters: int = 6
    learning_rate: float = 3e-3
    min_lr: float = 3e-4
    warmup_iters: int = 2
    weight_decay: float = 0.1
    grad_clip: float = 1.0
    dtype: str = "bfloat16"
    seed: int = 1337
    compile: bool = False


def parse(arguments):
    kinds = {field.name: type(field.default) for field in fields(Settings)}
    kinds = {name: "True".__eq__ if kind is bool else kind for name, kind in kinds.items()}
    given = dict(argument.removeprefix("--").split("=") for argument in arguments)
    return Settings(**{name: kinds[name](value) for name, value in given.items()})


class Documents:
    """Arithmetic progressions modulo the vocabulary, served in order; one in eight is short and padded with -1."""

    def __init__(self, settings, count=40):
        generator = torch.Generator().manual_seed(7)
        start = torch.randint(settings.vocab_size, (count, 1), generator=generator)
        stride = torch.randint(1, 6, (count, 1), generator=generator)
        tokens = (start + stride * torch.arange(settings.block_size + 1)) % settings.vocab_size
        self.inputs = tokens[:, :-1]
        self.targets = tokens[:, 1:].clone()
        self.targets[28::8, settings.block_size // 2 :] = -1
        self.position = 0

    def next_batch(self, size):
        rows = [(self.position + k) % len(self.inputs) for k in range(size)]
        self.position += size
        return self.inputs[rows], self.targets[rows]


def lr_at(settings, it):
    if it < settings.warmup_iters:
        return settings.learning_rate * (it + 1) / settings.warmup_iters
    ratio = (it - settings.warmup_iters) / (settings.max_iters - settings.warmup_iters)
    return settings.min_lr + 0.5 * (1.0 + math.cos(math.pi * ratio)) * (settings.learning_rate - settings.min_lr)


def make_optimizer(settings, model):
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    kept = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": decayed, "weight_decay": settings.weight_decay}, {"params": kept, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=settings.learning_rate, betas=(0.9, 0.95))


def accumulate(settings, model, data):
    """Backward over the micro-batches of one step; the last one's loss."""
    for _ in range(settings.gradient_accumulation_steps):
        idx, targets = data.next_batch(settings.batch_size)
        with torch.amp.autocast("cpu", dtype=torch.bfloat16, enabled=settings.dtype == "bfloat16"):
            loss = model(idx, targets)
            scaled = loss / settings.gradient_accumulation_steps
        scaled.backward()
    return loss.item()


def main():
    settings = parse(sys.argv[1:])
    torch.manual_seed(settings.seed)
    data = Documents(settings)
    model = torch.compile(GPT(settings)) if settings.compile else GPT(settings)
    optimizer = make_optimizer(settings, model)
    for step in range(settings.max_iters):
        for group in optimizer.param_groups:
            group["lr"] = lr_at(settings, step)
        loss = accumulate(settings, model, data)
        norm = clip_grad_norm_(model.parameters(), settings.grad_clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        print(f"step {step}: loss {loss:.4f}, gradient norm {norm.item():.4f}")


if __name__ == "__main__":
    main()
