"""Small programs that edits are tried on; they need no torch, for they bring a file of that name that is enough for them."""

TORCH = """
import contextlib


class Tensor:
    def __init__(self, values):
        self.values = list(values)

    def is_floating_point(self):
        return True

    def numel(self):
        return len(self.values)

    def abs(self):
        return Tensor(abs(value) for value in self.values)

    def clone(self):
        return Tensor(self.values)

    def detach(self):
        return self

    def flatten(self):
        return self

    def max(self):
        return Tensor([max(self.values)])

    def sum(self):
        return Tensor([sum(self.values)])

    def mean(self):
        return Tensor([sum(self.values) / len(self.values)])

    def norm(self):
        return Tensor([sum(value * value for value in self.values) ** 0.5])

    def isfinite(self):
        return self

    def isnan(self):
        return Tensor([0.0])

    def any(self):
        return Tensor([any(self.values)])

    def all(self):
        return Tensor([all(self.values)])

    def item(self):
        return self.values[0]

    def tolist(self):
        return self.values

    def __getitem__(self, key):
        return Tensor(self.values[key])

    def __add__(self, other):
        added = other.values if isinstance(other, Tensor) else [other] * len(self.values)
        return Tensor(one + two for one, two in zip(self.values, added))

    def __mul__(self, factor):
        return Tensor(value * factor for value in self.values)


def isnan(tensor):
    return tensor.isnan()


def is_grad_enabled():
    return True


@contextlib.contextmanager
def set_grad_enabled(mode):
    yield


class autograd:
    class profiler:
        record_function = set_grad_enabled


class random:
    @staticmethod
    @contextlib.contextmanager
    def fork_rng(enabled):
        yield


class nn:
    class Module:
        def __call__(self, x):
            return self.forward(x)

    class Linear(Module):
        made = 0

        def __init__(self, factor):
            nn.Linear.made += 1
            self.factor = factor + nn.Linear.made

        def forward(self, x):
            return x * self.factor

    class Dropout(Module):
        def forward(self, x):
            return x + 1
"""

TRAIN = '''"""Trains."""
import json as js, math
import torch
from torch import nn
import os.path as path
from model import Net, describe

NUM_STEPS, WIDTH = 3, 4


def batch(step, size=WIDTH):
    first = step + 1
    second = first * 2
    values = [first / (number + 1) for number in range(size)]
    return torch.Tensor(values), second


def run(net, steps=NUM_STEPS):
    total, seen = 0.0, []
    for step in range(steps):
        x, weight = batch(step)
        y = net(x)
        loss = math.sqrt(y.abs().sum().item()) / weight
        if loss > 100: seen.append(step)
        for scale, name in ((2, "two"), (3, "three")):
            total += loss * scale
            if name == "two":
                continue
            seen.append(round(total, 6))
        print(f"step {step} loss {loss:.6f}")  # for the log
    return total, seen


def report(total, seen):
    text = js.dumps({"total": round(total, 6), "seen": seen})
    base = path.basename("a/b")
    return text, base


net = Net()
total, seen = run(net)
text, base = report(total, seen)
print(text, base)
for part in [1, 2]:
    print(describe(net, part))
'''

MODEL = '''import torch
from torch import nn


def double(x):
    return x * 2


class Block(nn.Module):
    def __init__(self):
        self.proj = nn.Linear(2)
        self.drop = nn.Dropout()
        self.gate = nn.Linear(1)

    def forward(self, x):
        left = self.proj(x)
        right = self.gate(x)
        mixed = double(left + right)
        return self.drop(mixed)


class Net(nn.Module):
    def __init__(self):
        self.blocks = [Block() for _ in range(2)]

    def forward(self, x):
        def keep(value):
            kept = value.clone()
            return kept

        for block in self.blocks:
            x = keep(block(x))
        return x


def describe(net, part):
    """Says what it is."""
    return f"{type(net).__name__} {len(net.blocks) * part}"
'''

FILES = {"torch.py": TORCH, "train.py": TRAIN, "model.py": MODEL}
EDITED = ("train.py", "model.py")
