"""What both Llamas share: sizes, weights by their meaning, data, the loop of training."""

import zlib

import torch

VOCABULARY, WIDTH, INNER, LAYERS, HEADS, KEY_HEADS, LENGTH, EPS, THETA = 61, 32, 48, 2, 4, 2, 12, 1e-6, 10000.0
STEPS, MICROBATCHES = 2, 2

torch.manual_seed(0)


def weight(meaning, shape):
    """The same numbers for the same meaning, whatever a code base calls it."""
    if meaning.endswith("norm"):
        return torch.ones(shape) + 0.1 * torch.randn(shape, generator=_generator(meaning))
    return 0.05 * torch.randn(shape, generator=_generator(meaning))


def _generator(meaning):
    return torch.Generator().manual_seed(zlib.crc32(meaning.encode()))


def batches(step):
    generator = torch.Generator().manual_seed(step)
    for _ in range(MICROBATCHES):
        yield torch.randint(0, VOCABULARY, (2, LENGTH), generator=generator)


def train(model, parameters, loss_of):
    torch.set_num_threads(1)
    torch.manual_seed(1)  # what each drew to initialise weights that it then overwrote does not count
    optimizer = torch.optim.AdamW(parameters, lr=1e-3)
    for step in range(STEPS):
        optimizer.zero_grad()
        for tokens in batches(step):
            (loss_of(model, tokens) / MICROBATCHES).backward()
        optimizer.step()
