"""Digests of the program's random streams. Reading one moves nothing and starts no device."""

from __future__ import annotations

import ctypes
import hashlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

Reader = Callable[[], object]
UNTOUCHED = "as it was at the start"  # equal on both sides, so a stream that nobody uses is no difference


def fact(read: Reader) -> object:
    """One fact, or why it is unknown."""
    try:
        return read()
    except Exception as error:  # noqa: BLE001 - runs inside the user's step: an unreadable fact is a value, never an error
        return {"unknown": f"{type(error).__name__}: {error}"}


def step_streams(torch: Any, contract: Mapping[str, Any]) -> dict[str, Any]:
    """Digests at the first step.

    Args:
        torch: The module.
        contract: Holds the digests at the start.

    Returns:
        ``rng.step.*``, and ``rng.drawn``: whether the program drew from torch's default generator since it was seeded.

    Cost: 0.1 ms: four times 5 kB digested, one small generator made.
    """
    default = torch.default_generator
    readers: dict[str, Callable[[], object]] = {
        "rng.step.torch": lambda: _since(torch_state(default), contract.get("start.rng.torch")),
        "rng.step.python": lambda: _since(python_state(), contract.get("start.rng.python")),
        "rng.step.numpy": lambda: UNTOUCHED if numpy_is_fresh() else _since(numpy_state(), contract.get("start.rng.numpy")),
        "rng.drawn": lambda: torch_state(torch.Generator().manual_seed(default.initial_seed())) != torch_state(default),
    }
    if torch.cuda.is_initialized():
        readers["rng.step.cuda"] = lambda: [torch_state(generator) for generator in torch.cuda.default_generators]
    return {key: fact(read) for key, read in readers.items()}


def _since(now: str, start: object) -> str:
    return UNTOUCHED if now == start else now


def torch_state(generator: Any) -> str:
    """Digest of one torch generator."""
    state = generator.get_state()
    storage = state.untyped_storage()
    return digest(ctypes.string_at(storage.data_ptr(), storage.nbytes()))


def python_state() -> str:
    """Digest of Python's global generator."""
    # Only if the program has it: importing it would seed it, and reading it does not move it.
    module: Any = sys.modules.get("random")
    return "not imported" if module is None else digest(repr(module.getstate()).encode())


def numpy_state() -> str:
    """Digest of numpy's global generator."""
    module: Any = sys.modules.get("numpy.random")
    if module is None:
        return "not imported"
    name, keys, position, has_gauss, gauss = module.get_state(legacy=True)
    return digest(f"{name} {position} {has_gauss} {gauss!r} ".encode() + keys.tobytes())


def numpy_is_fresh() -> bool:
    """Whether numpy's global generator stands where the operating system's entropy put it: nobody seeded it or drew from it.

    An import after the start leaves no digest of the start to compare with, but the generator keeps what it was made from.
    """
    module: Any = sys.modules.get("numpy.random")
    if module is None:
        return False
    generator = module.mtrand._rand._bit_generator
    seeded = generator.seed_seq  # None once somebody called seed()
    if seeded is None:
        return False
    fresh = type(generator)(module.SeedSequence(seeded.entropy, spawn_key=seeded.spawn_key, pool_size=seeded.pool_size))
    now, start = generator.state["state"], fresh.state["state"]
    return bool(now["pos"] == start["pos"] and (now["key"] == start["key"]).all())


def digest(data: bytes) -> str:
    """sha256 in hex."""
    return hashlib.sha256(data).hexdigest()
