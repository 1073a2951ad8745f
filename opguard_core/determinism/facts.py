"""Gather one rank's comparability contract: early facts when capture starts, late ones at the first optimizer step.

Early facts ask torch for nothing that it remembers being asked: reading the thread count or the CPU capability fixes
settings that a program may still change after ``import torch``, and asking for CUDA starts it. Late facts are read when
the program first updates parameters, or at its end if it never does; by then everything has been in use.

What it cannot see: settings changed for a part of a step and changed back (autocast regions; the events show their dtypes).
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from opguard_core.determinism.environment import relevant
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
Reader = Callable[[], object]


class RankFacts:
    """The contract of one rank while it is being gathered.

    Usage: make one when capture starts (before any dispatch mode is active), give ``contract`` to the writer, call
    ``late`` before the first optimizer step and ``finish`` when capture stops, and give its result to the writer again.
    """

    def __init__(self, config: RunConfig) -> None:
        """Read the early facts."""
        self._torch: Any = sys.modules["torch"]
        self._late = False
        self.contract: Contract = {**_early(config, self._torch), **config.facts}

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
            self.contract[key] = _read(read)

    def finish(self) -> Contract:
        """Read late facts now if that has not happened, and return everything."""
        self.late("end")
        return self.contract


def _read(read: Reader) -> object:
    """One fact, or why it is unknown."""
    try:
        return read()
    except Exception as error:  # noqa: BLE001 - runs inside the user's step: an unreadable fact is a value, never an error
        return {"unknown": f"{type(error).__name__}: {error}"}


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
        "torch.git": _read(lambda: torch.version.git_version),
        "torch.cuda": _read(lambda: torch.version.cuda),
        "torch.hip": _read(lambda: torch.version.hip),
        "run.world_size": config.world_size,
        "run.argv": redact_argv(config.argv),
        "run.deterministic": config.deterministic,
        "start.seed.torch": _read(torch.initial_seed),
        "start.rng.torch": _read(lambda: _digest(torch.get_rng_state().numpy().tobytes())),
        "start.rng.python": _read(_python_state),
        "start.rng.numpy": _read(_numpy_state),
    }
    contract.update({f"env.{name}": value for name, value in relevant(os.environ).items()})
    contract.update({f"package.{name}": version for name in PACKAGES if (version := _version(name)) is not None})
    return contract


def late_readers(torch: Any) -> Mapping[str, Reader]:
    """What to read late, by contract key; each may fail on some torch without harm to the others."""
    cuda, cudnn, mkldnn = torch.backends.cuda, torch.backends.cudnn, torch.backends.mkldnn
    readers: dict[str, Reader] = {
        "torch.build": lambda: _digest(torch.__config__.show().encode()),
        "cpu.capability": torch.backends.cpu.get_cpu_capability,
        "threads.intraop": torch.get_num_threads,
        "threads.interop": torch.get_num_interop_threads,
        "flags.default_dtype": lambda: str(torch.get_default_dtype()),
        "flags.default_device": lambda: str(torch.get_default_device()),
        "flags.deterministic_algorithms": torch.are_deterministic_algorithms_enabled,
        "flags.deterministic_warn_only": torch.is_deterministic_algorithms_warn_only_enabled,
        "flags.fill_uninitialized_memory": lambda: torch.utils.deterministic.fill_uninitialized_memory,
        "flags.float32_matmul_precision": torch.get_float32_matmul_precision,
        "flags.mkldnn.enabled": lambda: mkldnn.enabled,
        "flags.mkldnn.deterministic": lambda: mkldnn.deterministic,
        "flags.cudnn.enabled": lambda: cudnn.enabled,
        "flags.cudnn.benchmark": lambda: cudnn.benchmark,
        "flags.cudnn.deterministic": lambda: cudnn.deterministic,
        "flags.cudnn.allow_tf32": lambda: cudnn.allow_tf32,
        "flags.cuda.matmul.allow_tf32": lambda: cuda.matmul.allow_tf32,
        "flags.cuda.matmul.reduced_bf16": lambda: str(cuda.matmul.allow_bf16_reduced_precision_reduction),
        "flags.cuda.matmul.reduced_fp16": lambda: str(cuda.matmul.allow_fp16_reduced_precision_reduction),
        "flags.sdpa.flash": cuda.flash_sdp_enabled,
        "flags.sdpa.mem_efficient": cuda.mem_efficient_sdp_enabled,
        "flags.sdpa.math": cuda.math_sdp_enabled,
        "flags.sdpa.cudnn": lambda: cuda.cudnn_sdp_enabled(),
        "flags.mha_fastpath": lambda: torch.backends.mha.get_fastpath_enabled(),
        "flags.autocast.cpu": lambda: torch.is_autocast_enabled("cpu"),
        "flags.autocast.cpu_dtype": lambda: str(torch.get_autocast_dtype("cpu")),
        "flags.autocast.cuda": lambda: torch.is_autocast_enabled("cuda"),
        "flags.autocast.cuda_dtype": lambda: str(torch.get_autocast_dtype("cuda")),
        "seed.torch": torch.initial_seed,
        "compile.used": _frames_compiled,
        "env.at_step": lambda: relevant(os.environ),
    }
    if torch.cuda.is_initialized():
        readers.update(_cuda_readers(torch))
    return readers


def _cuda_readers(torch: Any) -> dict[str, Reader]:
    def device() -> Any:
        return torch.cuda.get_device_properties(torch.cuda.current_device())

    return {
        "device.name": lambda: device().name,
        "device.capability": lambda: f"{device().major}.{device().minor}",
        "device.uuid": lambda: str(device().uuid),
        "device.multiprocessors": lambda: device().multi_processor_count,
        "torch.cudnn": torch.backends.cudnn.version,
        "torch.nccl": lambda: ".".join(map(str, torch.cuda.nccl.version())),
        "device.driver": lambda: str(torch._C._cuda_getDriverVersion()),
        "flags.cuda.blas": lambda: str(torch.backends.cuda.preferred_blas_library()),
    }


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _frames_compiled() -> bool:
    """Whether torch.compile has worked on any function so far."""
    module: Any = sys.modules.get("torch._dynamo.utils")
    return module is not None and bool(module.counters["frames"])


def _python_state() -> str:
    # Only if the program has it: importing it would seed it, and reading it does not move it.
    module: Any = sys.modules.get("random")
    return "not imported" if module is None else _digest(repr(module.getstate()).encode())


def _numpy_state() -> str:
    module: Any = sys.modules.get("numpy.random")
    if module is None:
        return "not imported"
    name, keys, position, has_gauss, gauss = module.get_state(legacy=True)
    return _digest(f"{name} {position} {has_gauss} {gauss!r} ".encode() + keys.tobytes())


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
