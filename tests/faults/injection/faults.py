"""What a fault is, and which events of a run one can be put into."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from tests.faults.injection.memory import is_plain

FLIP, SWAP, SKIP = "value flip", "rows swapped", "in-place skipped"
REMOVE, SILENT, SCALAR = "operator removed", "silent write", "scalar changed"
KINDS = (FLIP, SWAP, SKIP, REMOVE, SILENT, SCALAR)

_UNWRITTEN = ("empty", "new_empty", "resize_", "set_")
"""Results without content, or no result at all."""
_UNREAD = ("_like", "new_", "zero_", "fill_", "copy_", "normal_", "uniform_", "random_", "bernoulli_", "detach", "set_", "resize_")
"""Operators whose first tensor is not read: only its shape counts, or it is overwritten."""


@dataclass(frozen=True)
class Spot:
    """One tensor of a call.

    Attributes:
        where: Path among the call's results ("r.0"), arguments ("a.1.0") or keywords ("k.out").
        shape: Its sizes.
        dtype: Its dtype.
        itemsize: Bytes of an element.
    """

    where: str
    shape: tuple[int, ...]
    dtype: str
    itemsize: int

    @property
    def numel(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))


@dataclass(frozen=True)
class Site:
    """One call that gave an event in an uninjected run.

    Attributes:
        call: Number of the call among all that reach capture.
        seq: Its event.
        operator: Its overload.
        results: New tensors, with content.
        written: Tensors it writes in place.
        read: Tensors it reads.
        scalars: Numbers among its arguments: where, value.
        removal: "" (cannot be left out), "in place" or "alias" (its first input stands for its result).
    """

    call: int
    seq: int
    operator: str
    results: tuple[Spot, ...] = ()
    written: tuple[Spot, ...] = ()
    read: tuple[Spot, ...] = ()
    scalars: tuple[tuple[str, float | int], ...] = ()
    removal: str = ""


@dataclass(frozen=True)
class Fault:
    """One injection.

    Attributes:
        kind: One of `KINDS`.
        call: Call to inject into.
        seq: Event of that call.
        operator: Its overload.
        where: Tensor or number that changes.
        detail: Element and bit, dimension and rows, or the new number.
    """

    kind: str
    call: int
    seq: int
    operator: str
    where: str = ""
    detail: tuple[Any, ...] = ()


@dataclass
class Found:
    """The catalogue of one uninjected run of one rank."""

    sites: list[Site] = field(default_factory=list)
    last_call: int = 0


def describe(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, call: int, seq: int) -> Site:
    """The site of one call that just ended."""
    name = func._schema.name.partition("::")[2]
    results = tuple(_spot(path, tensor) for path, tensor in new_results(func, result))
    written = tuple(_spot(path, tensor) for path, tensor in mutated(func, args, kwargs))
    read = [_spot(path, tensor) for path, tensor in arguments(func, args, kwargs) if not path.startswith("k.out")]
    if any(name.endswith(part) or name.startswith(part) for part in _UNREAD):
        read = read[1:]
    if name.startswith(_UNWRITTEN) or "c10d" in func._schema.name:
        results, written, read = (), (), []
    return Site(
        call, seq, str(func), results, written, tuple(read), tuple(numbers(func, args, kwargs)), _removal(func, args, results, written)
    )


def _removal(func: Any, args: tuple[Any, ...], results: tuple[Spot, ...], written: tuple[Spot, ...]) -> str:
    if written and not results:
        return "in place"
    first = args[0] if args else None
    if len(results) == 1 and len(func._schema.returns) == 1 and is_plain(first) and not written:
        spot = results[0]
        if spot.where == "r" and (tuple(first.shape), str(first.dtype)) == (spot.shape, spot.dtype):
            return "alias"
    return ""


def _spot(path: str, tensor: torch.Tensor) -> Spot:
    return Spot(path, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), tensor.itemsize)


def _flat(path: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    if is_plain(value):
        yield path, value
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _flat(f"{path}.{index}", item)


def new_results(func: Any, result: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors among the results that are no argument."""
    returns = func._schema.returns
    for index, declared in enumerate(returns):
        if declared.alias_info is None:
            yield from _flat("r" if len(returns) == 1 else f"r.{index}", result if len(returns) == 1 else result[index])


def arguments(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, written: bool = False) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors among the arguments; only those written in place, if asked."""
    for index, declared in enumerate(func._schema.arguments):
        if written and not (declared.alias_info is not None and declared.alias_info.is_write):
            continue
        if index < len(args):
            yield from _flat(f"a.{index}", args[index])
        elif declared.name in kwargs:
            yield from _flat(f"k.{declared.name}", kwargs[declared.name])


def mutated(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors that the schema says are written."""
    return arguments(func, args, kwargs, written=True)


def numbers(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[str, float | int]]:
    """Numbers that take part in the arithmetic: floats, and whole numbers where the schema wants a scalar or a tensor."""
    for index, declared in enumerate(func._schema.arguments):
        value = args[index] if index < len(args) else kwargs.get(declared.name)
        scalar = any(word in str(declared.type) for word in ("number", "Scalar", "Tensor"))
        if type(value) is float or (type(value) is int and scalar):
            yield (f"a.{index}" if index < len(args) else f"k.{declared.name}"), value


def at(where: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> torch.Tensor:
    """The tensor at a path."""
    head, *rest = where.split(".")
    value: Any = result
    if head == "a":
        value, rest = args[int(rest[0])], rest[1:]
    elif head == "k":
        value, rest = kwargs[rest[0]], rest[1:]
    for index in rest:
        value = value[int(index)]
    assert isinstance(value, torch.Tensor)
    return value


def possible(kind: str, site: Site) -> bool:
    """Whether a fault of that kind can be put there."""
    if kind == FLIP:
        return any(spot.numel for spot in (*site.results, *site.written))
    if kind == SWAP:
        return any(_dim(spot) is not None for spot in (*site.results, *site.written))
    if kind == SKIP:
        return any(spot.numel for spot in site.written)
    if kind == REMOVE:
        return bool(site.removal)
    if kind == SILENT:
        return any(spot.numel for spot in site.read)
    return bool(site.scalars)


def _dim(spot: Spot) -> int | None:
    return next((dim for dim, size in enumerate(spot.shape) if size > 1), None) if len(spot.shape) > 1 else None


def draw(rng: np.random.Generator, kind: str, sites: list[Site]) -> Fault | None:
    """A fault of one kind at a random event that can have it; None if there is none."""
    fitting = [site for site in sites if possible(kind, site)]
    if not fitting:
        return None
    site = fitting[int(rng.integers(len(fitting)))]
    where, detail = "", ()
    if kind in (FLIP, SILENT):
        spots = [spot for spot in ((*site.results, *site.written) if kind == FLIP else site.read) if spot.numel]
        spot = spots[int(rng.integers(len(spots)))]
        where, detail = spot.where, (int(rng.integers(spot.numel)), _bit(rng, spot))
    elif kind == SWAP:
        spots = [spot for spot in (*site.results, *site.written) if _dim(spot) is not None]
        spot = spots[int(rng.integers(len(spots)))]
        dim = _dim(spot)
        assert dim is not None
        where, detail = spot.where, (dim, *sorted(int(row) for row in rng.choice(spot.shape[dim], 2, replace=False)))
    elif kind == SCALAR:
        where, value = site.scalars[int(rng.integers(len(site.scalars)))]
        detail = (value + 1 if isinstance(value, int) else value * (1 + 2.0**-8) if value else 0.015625,)
    elif kind == REMOVE:
        detail = (site.removal,)
    return Fault(kind, site.call, site.seq, site.operator, where, detail)


def _bit(rng: np.random.Generator, spot: Spot) -> int:
    """Any bit of a float; the lowest one of a whole number or a bool, which may be an index."""
    return int(rng.integers(8 * spot.itemsize)) if "float" in spot.dtype else 0
