"""Random state: which generator an operator consumed, and what it held before."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import torch

from opguard_core.fingerprint.cpu import fingerprint_bytes
from opguard_core.probe.tensor import Unreadable, fingerprint_host


class Generators:
    """Names generators and reads their states. Reading moves nothing."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._held: list[Any] = []  # identity is an address; a generator is small and owns no tensor of the program
        self._next: dict[str, int] = {}

    def used_by(self, args: tuple[Any, ...], kwargs: dict[str, Any], device: torch.device | None) -> Any:
        """The generator a random operator is about to use, None if it cannot be told."""
        for value in (*kwargs.values(), *args):
            if isinstance(value, torch.Generator):
                return value
        return _default(device)

    def name(self, generator: Any) -> str:
        """Name a generator: "cpu" for a device's default generator, "cpu#1" for others by order of first use."""
        device = str(generator.device)
        if generator is _default(generator.device):
            return device
        number = self._numbers.get(id(generator))
        if number is None:
            number = self._next[device] = self._next.get(device, 0) + 1
            self._numbers[id(generator)] = number
            self._held.append(generator)
        return f"{device}#{number}"

    def known(self) -> Iterator[Any]:
        """The devices' default generators in use, then the others met so far."""
        yield torch.default_generator
        if torch.cuda.is_initialized():  # asking whether it is available would start the driver
            yield from torch.cuda.default_generators
        yield from self._held

    def digest(self, generator: Any) -> int | None:
        """mix64 of a generator's state; None where it may not be asked for (while a CUDA graph is recorded).

        Cost: copies 5 kB on CPU, 16 bytes on CUDA: a CUDA generator is a seed and a counter in host memory, of which `get_state`
        makes a host tensor, so nothing waits for the device.
        Source: ATen/cuda/CUDAGeneratorImpl.cpp, CUDAGeneratorImpl::get_state.
        """
        try:
            state = fingerprint_host(generator.get_state())
        except RuntimeError:
            return None
        return None if isinstance(state, Unreadable) else state.mix64


def _default(device: torch.device | None) -> Any:
    if device is None or device.type == "cpu" or device.type == "meta":
        return torch.default_generator
    if device.type == "cuda" and torch.cuda.is_initialized():
        return torch.cuda.default_generators[torch.cuda.current_device() if device.index is None else device.index]
    return None


_host_digests: dict[str, tuple[Any, int]] = {}  # the last state of each, and its digest: most programs draw from neither in a step


def host_states() -> dict[str, int]:
    """Digests of the generators outside torch that the program has imported: python's and numpy's global ones.

    Cost: about 20 us while nothing is drawn, 60 us after; 300 us when a generator has made new words.
    """
    states: dict[str, int] = {}
    known = _host_digests
    # Taken from sys.modules: what the program has not imported must not be imported by us.
    python = sys.modules.get("random")
    if python is not None:
        state = python.getstate()
        before, digest = known.get("python", (None, 0))
        if state != before:
            version, internal, gauss = state
            digest = _digest_of(f"{version},{_text_of(internal[:-1])},{internal[-1]}", gauss)
            known["python"] = state, digest
        states["python"] = digest
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        name, keys, position, has_gauss, cached = numpy.get_state()
        state = (name, keys.tobytes(), position, has_gauss, cached)
        before, digest = known.get("numpy", (None, 0))
        if state != before:
            digest = _digest_of(f"{len(name)},{position},{has_gauss},{_text_of(tuple(keys.tolist()))}", cached)
            known["numpy"] = state, digest
        states["numpy"] = digest
    return states


def _digest_of(numbers: str, gauss: float | None) -> int:
    return fingerprint_bytes(f"{numbers};{'None' if gauss is None else float(gauss).hex()}".encode())


@lru_cache(maxsize=4)
def _text_of(words: tuple[int, ...]) -> str:
    """The words that a generator has made: new ones once in some hundred draws, in between only its place in them moves."""
    return ",".join(map(str, words))
