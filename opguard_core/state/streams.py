"""Random streams: the generators of this process and every generator object, read and put back without a draw."""

from __future__ import annotations

import contextlib
import ctypes
import random as python_random  # noqa: TID251  torch has imported it already; reading and setting its state draws nothing
import sys
from collections.abc import Iterator
from typing import Any

import torch

from opguard_core.errors import StateMismatch, StateUnsupported

Streams = dict[str, Any]


@contextlib.contextmanager
def unobserved() -> Iterator[None]:
    """Run torch code of ours that only reads: no dispatch mode, subclass or graph of the program notices."""
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch(), torch._C._AutoDispatchBelowAutograd():
        yield


def process_streams(*, devices: bool = True) -> Streams:
    """States of this process's global generators: torch's, Python's, and numpy's if it is loaded.

    Args:
        devices: Whether the accelerators' generators are wanted too, where they have been started.

    Cost: about 13 kB copied, 50 us; a read of 16 bytes for each CUDA device.
    """
    with unobserved():
        found: Streams = {"torch": _bytes(torch.get_rng_state()), "python": python_random.getstate()}
        numpy: Any = sys.modules.get("numpy.random")
        if numpy is not None:
            found["numpy"] = numpy.get_state(legacy=False)
        if devices and torch.cuda.is_available() and torch.cuda.is_initialized():
            found["cuda"] = [_bytes(state) for state in torch.cuda.get_rng_state_all()]
    return found


def set_process_streams(streams: Streams) -> None:
    """Put the global generators back.

    Raises:
        StateMismatch: The machine has another number of CUDA devices; nothing was changed.
    """
    cuda = streams.get("cuda")
    if cuda is not None and torch.cuda.device_count() != len(cuda):
        raise StateMismatch(f"The snapshot holds the generators of {len(cuda)} CUDA devices; here are {torch.cuda.device_count()}.")
    with unobserved():
        torch.set_rng_state(_tensor(streams["torch"]))
        python_random.setstate(streams["python"])
        if "numpy" in streams:
            import numpy.random

            numpy.random.set_state(streams["numpy"])
        if cuda is not None:
            torch.cuda.set_rng_state_all([_tensor(state) for state in cuda])


def is_generator(value: object) -> bool:
    """Whether a value is a generator object whose state can be read; the operating system's source of chance has none."""
    numpy: Any = sys.modules.get("numpy.random")
    kinds = (torch.Generator, python_random.Random, *((numpy.Generator, numpy.RandomState) if numpy is not None else ()))
    return isinstance(value, kinds) and not isinstance(value, python_random.SystemRandom)


def generator_state(generator: Any, path: str) -> dict[str, Any]:
    """State of one generator object.

    Args:
        generator: Of torch, of Python's ``random``, or of numpy.
        path: What messages call it.

    Raises:
        StateUnsupported: It is something else.
    """
    if isinstance(generator, torch.Generator):
        with unobserved():
            return {"kind": f"torch {generator.device.type}", "state": _bytes(generator.get_state())}
    if not is_generator(generator):
        raise StateUnsupported(f"{path} is a {type(generator).__qualname__}, which is no generator of torch, numpy or Python.")
    if isinstance(generator, python_random.Random):
        return {"kind": "python", "state": generator.getstate()}
    if hasattr(generator, "bit_generator"):
        return {"kind": f"numpy {type(generator.bit_generator).__name__}", "state": generator.bit_generator.state}
    return {"kind": "numpy RandomState", "state": generator.get_state(legacy=False)}


def set_generator(generator: Any, recorded: dict[str, Any]) -> None:
    """Put one generator object back; its kind was compared before."""
    if isinstance(generator, torch.Generator):
        with unobserved():
            generator.set_state(_tensor(recorded["state"]))
    elif isinstance(generator, python_random.Random):
        generator.setstate(recorded["state"])
    elif hasattr(generator, "bit_generator"):
        generator.bit_generator.state = recorded["state"]
    else:
        generator.set_state(recorded["state"])


def _bytes(state: torch.Tensor) -> bytes:
    return ctypes.string_at(state.untyped_storage().data_ptr() + state.storage_offset(), state.numel())


def _tensor(state: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(state), dtype=torch.uint8)
