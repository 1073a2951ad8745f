"""Gather one rank's comparability contract: early facts when capture starts, late ones at the first optimizer step.

Early facts ask torch for nothing that it remembers being asked: reading the thread count or the CPU capability fixes
settings that a program may still change after ``import torch``, and asking for CUDA starts it. Late facts are read when
the program first updates parameters, or at its end if it never does; by then everything has been in use.

What a program sets for a part of a step is read at its first training forward; what it makes and loads (loaders, checkpoint
files, state dicts) is told by `engines.witness`.

What it cannot see: settings changed inside a forward and changed back, between two calls of modules.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from opguard_core.determinism.device import device_facts
from opguard_core.determinism.environment import relevant
from opguard_core.determinism.readers import forward_readers, late_readers
from opguard_core.determinism.streams import fact, numpy_state, python_state, step_streams, torch_state
from opguard_core.plan.config import RunConfig
from opguard_core.plan.redact import redact_argv

PACKAGES = (
    "accelerate",
    "apex",
    "bitsandbytes",
    "datasets",
    "deepspeed",
    "flash-attn",
    "lightning",
    "liger-kernel",
    "megatron-core",
    "numpy",
    "peft",
    "pytorch-lightning",
    "safetensors",
    "tokenizers",
    "torchao",
    "torchaudio",
    "torchtitan",
    "torchvision",
    "transformer-engine",
    "transformers",
    "triton",
    "trl",
    "xformers",
)
Contract = dict[str, Any]


class RankFacts:
    """The contract of one rank while it is being gathered.

    Usage: make one when capture starts (before any dispatch mode is active), give ``contract`` to the writer, call
    ``late`` before the first optimizer step and ``finish`` when capture stops, and give its result to the writer again.
    """

    def __init__(self, config: RunConfig) -> None:
        """Read the early facts."""
        self._torch: Any = sys.modules["torch"]
        self._late = False
        self._on_their_way: list[tuple[Callable[[], Contract | None], Callable[[], None]]] = []
        self.contract: Contract = {**_early(config, self._torch), **config.facts}

    def note(self, facts: Contract) -> None:
        """Add facts about objects that the program made or files that it loaded."""
        self.contract.update(facts)

    def later(self, read: Callable[[], Contract | None], wait: Callable[[], None]) -> None:
        """Add facts that are still on their way from a device: ``read`` gives them, or None; ``wait`` waits until it does."""
        self._on_their_way.append((read, wait))

    def settle(self) -> None:
        """Take those of them that have come. Never waits."""
        left = []
        for read, wait in self._on_their_way:
            found = read()
            if found is None:
                left.append((read, wait))
            else:
                self.contract.update(found)
        self._on_their_way = left

    def forward(self) -> None:
        """Read what the first training forward runs under: autocast regions, attention backends, precision. Never raises."""
        for key, read in forward_readers(self._torch).items():
            self.contract[key] = fact(read)

    def late(self, when: str) -> None:
        """Read the late facts, once; never raises.

        Args:
            when: Recorded with them.
        """
        if self._late:
            return
        self._late = True
        self.contract["late"] = when
        for key, read in late_readers(self._torch).items():
            self.contract[key] = fact(read)
        if self._torch.cuda.is_initialized():
            self.contract.update(device_facts(self._torch))
        self.contract.update(step_streams(self._torch, self.contract))

    def finish(self) -> Contract:
        """Read late facts now if that has not happened, wait for those that are on their way, and return everything."""
        self.late("end")
        self.settle()
        for _, wait in self._on_their_way:
            wait()
        self.settle()
        return self.contract


def _early(config: RunConfig, torch: Any) -> Contract:
    contract: Contract = {
        "python.version": platform.python_version(),
        "python.implementation": platform.python_implementation(),
        "python.executable": sys.executable,
        "python.flags": {name: getattr(sys.flags, name) for name in ("optimize", "dev_mode", "hash_randomization", "utf8_mode")},
        "platform.system": platform.system(),
        "platform.machine": platform.machine(),
        "platform.release": platform.release(),
        "cpu.model": _cpu_model(),
        "cpu.count": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "torch.version": str(torch.__version__),
        "torch.git": fact(lambda: torch.version.git_version),
        "torch.cuda": fact(lambda: torch.version.cuda),
        "torch.hip": fact(lambda: torch.version.hip),
        "run.world_size": config.world_size,
        "run.argv": redact_argv(config.argv),
        "run.deterministic": config.deterministic,
        "run.local_world_size": os.environ.get("LOCAL_WORLD_SIZE"),
        "start.seed.torch": fact(torch.initial_seed),
        "start.rng.torch": fact(lambda: torch_state(torch.default_generator)),
        "start.rng.python": fact(python_state),
        "start.rng.numpy": fact(numpy_state),
    }
    contract.update({f"env.{name}": value for name, value in relevant(os.environ).items()})
    contract.update({f"package.{name}": version for name in PACKAGES if (version := _version(name)) is not None})
    return contract


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu_model() -> str:
    """Marketing name of the processor, "" where it is not told in a file."""
    try:
        text = Path("/proc/cpuinfo").read_text("ascii", errors="replace")
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")), platform.processor())
