"""Digests of a training's state summed up by kind: what is known of how the tensors lie in memory is kept from step to step.

    Sums.read(values, names) -> whose tensors are as before? -> addresses -> one call for each device -> Sum for each name

What is kept says nothing about content and holds no tensor. Each time all of it is compared with the tensors that come: their classes,
dtypes, devices, sizes and strides, where in their storages they lie and how large those are. If anything differs it is worked
out anew. What is not a plain tensor (sparse, quantised, a subclass) is read one by one, as `tensor.fingerprint` does.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch

from opguard_core.fingerprint import cpu
from opguard_core.probe import backends, torch_twin
from opguard_core.probe.alike import alike
from opguard_core.probe.asking import Layout, Layouts, Views
from opguard_core.probe.kinds import Unreadable, wrapped_in
from opguard_core.probe.numbers import digests_of_number, dtype_of
from opguard_core.probe.promise import Deliveries, Known
from opguard_core.probe.tensor import fingerprint, plan_of
from opguard_core.probe.totals import Part, Sum

MOST_AT_ONCE = 1024  # tensors that a backend is asked for in one call
_EXACT = frozenset({torch.Tensor, torch.nn.Parameter})
_data_address = torch._C._data_address  # of the storage; asking for one that may be written to would end a copy-on-write sharing
_offset, _storage = torch.Tensor.storage_offset, torch.Tensor.untyped_storage
_storage_bytes = torch.UntypedStorage.nbytes
Value: TypeAlias = torch.Tensor | float


class Group:
    """What was found under one name.

    Attributes:
        first: Place of the first that could be read.
        elements: Of all.
        dtypes: Their names.
        sum: Their digests.
    """

    __slots__ = ("dtypes", "elements", "first", "sum")

    def __init__(self, first: int) -> None:
        self.first, self.elements, self.dtypes, self.sum = first, 0, set[str](), Sum()

    def add(self, place: int, elements: int, dtype: str, known: Known) -> None:
        """Count one value in."""
        self.first = min(self.first, place)
        self.elements += elements
        self.dtypes.add(dtype)
        self.sum.add(place, known)


class Found(NamedTuple):
    """What `Sums.read` found: by name, in the order of the first place of each; and why values could not be read."""

    groups: dict[str, Group]
    unreadable: list[Unreadable]


class Sums:
    """Sums up the digests of the same tensors again and again. Safe from any thread; not quick from several at once."""

    def __init__(self) -> None:
        self._idle: list[_Known] = []  # what is known is taken out while it is in use

    def read(self, values: Sequence[Value], names: Sequence[str]) -> Found:
        """Digest values and sum up those of each name. Call inside `quiet`.

        Args:
            values: Tensors of any kind, and Python numbers.
            names: The name of each.

        Cost: 0.5 us a plain tensor that lies as one did at its place before, with nothing done for each on its device's launch path;
        5 us if something has changed, and for other tensors as `tensor.fingerprint`. Host tensors: and memory speed.
        """
        try:
            known: _Known | None = self._idle.pop()
        except IndexError:
            known = None
        memories = _memories(values) if known is None or known.has_others else values
        addresses = None if known is None else known.addresses(values, names, memories)
        if known is None or addresses is None:
            memories = _memories(values)
            known = _Known(values, names, memories)
            addresses = known.addresses_now(memories)
        found = known.read(values, names, memories, addresses)
        self._idle[:] = [known]
        return found


def _memories(values: Sequence[Value]) -> Sequence[Any]:
    """For each tensor the one whose memory has its content: a DTensor's is its shard."""
    if _EXACT.issuperset(map(type, values)):
        return values
    inner = ["" if cls in _EXACT else wrapped_in(cls) for cls in map(type, values)]
    return [getattr(value, name) if name else value for value, name in zip(values, inner, strict=True)]


class _Run(NamedTuple):
    """Tensors of one device that are read together.

    Attributes:
        places: Among all values.
        at: Their addresses' places.
        names: For each name its tensors' places here, and their bytes.
    """

    places: list[int]
    at: Any
    names: list[tuple[str, Any, int]]


class _Later(NamedTuple):
    """A run whose device answers later."""

    run: _Run
    order: Any
    layouts: Layouts
    device: torch.device
    deliveries: Deliveries


class _Known:
    """What is known of values: which are plain, how each of those lies in memory, what is asked for together."""

    def __init__(self, values: Sequence[Value], names: Sequence[str], memories: Sequence[Any]) -> None:
        self._names = list(names)
        self._others: list[int] = []
        self._unique: list[int] = []  # places of plain tensors, each tensor once
        self._repeats: list[tuple[int, int]] = []  # places of the same tensor
        self._totals: dict[str, tuple[int, int, set[str]]] = {}  # first place, elements, dtypes
        index: dict[int, int] = {}
        at: dict[int, int] = {}  # by place, the place of the address
        host: list[tuple[int, cpu.Reader, int]] = []
        later: dict[torch.device, list[tuple[int, Layout, int]]] = defaultdict(list)
        for place, memory in enumerate(memories):
            plain = _plain(memory)
            if plain is None:
                self._others.append(place)
                continue
            at[place] = index.setdefault(id(memory), len(index))
            if at[place] == len(self._unique):
                self._unique.append(place)
            else:
                self._repeats.append((place, self._unique[at[place]]))
            nbytes = memory.numel() * memory.itemsize
            if isinstance(plain, Layout):
                later[memory.device].append((place, plain, nbytes))
            else:
                host.append((place, plain, nbytes))
            value: Any = values[place]
            first, elements, dtypes = self._totals.get(names[place], (place, 0, set()))
            self._totals[names[place]] = first, elements + value.numel(), dtypes | {_name_of(value.dtype)}
        self._wrappers = _facts_of_wrappers(values, memories)
        self._host_answers = backends.deliveries_for("cpu")
        self._host = self._run(host, at), cpu.Readers([reader for _, reader, _ in host])
        self._later: list[_Later] = []
        for device, all_of_it in later.items():
            deliveries = backends.deliveries_for(device.type)
            assert deliveries is not None
            for start in range(0, len(all_of_it), MOST_AT_ONCE):
                some = all_of_it[start : start + MOST_AT_ONCE]
                run = self._run(some, at)
                self._later.append(_Later(run, np.array(run.places), Layouts([layout for _, layout, _ in some]), device, deliveries))
        unique = [memories[place] for place in self._unique]
        self._places_in_storage = _places_in_storage(unique)
        self._byte_offsets = np.array([one.storage_offset() * one.itemsize for one in unique], dtype=np.uint64)
        self._alike = alike(unique)

    @property
    def has_others(self) -> bool:
        """Whether there are values that are not tensors whose own memory is plainly read."""
        return bool(self._others or self._wrappers)

    def _run(self, some: Sequence[tuple[int, Any, int]], at: dict[int, int]) -> _Run:
        places = [place for place, _, _ in some]
        by_name: dict[str, list[int]] = defaultdict(list)
        for here, place in enumerate(places):
            by_name[self._names[place]].append(here)
        names = [(name, np.array(those), sum(some[here][2] for here in those)) for name, those in by_name.items()]
        return _Run(places, np.array([at[place] for place in places], dtype=np.intp), names)

    def addresses(self, values: Sequence[Value], names: Sequence[str], memories: Sequence[Any]) -> Any:
        """Where the plain tensors lie; None if anything known of them is no longer so, or if that cannot be told."""
        if self._alike is None or self._names != names:
            return None
        unique = [memories[place] for place in self._unique] if self._others or self._repeats else memories
        is_known = (
            self._alike(*unique)
            and all(memories[place] is memories[first] for place, first in self._repeats)
            and _facts_of_wrappers(values, memories) == self._wrappers
            and _places_in_storage(unique) == self._places_in_storage
            and self._host_answers is backends.deliveries_for("cpu")
            and all(one.deliveries is backends.deliveries_for(one.device.type) for one in self._later)
        )
        starts = list(map(_data_address, unique)) if is_known else [0]
        return None if 0 in starts else np.array(starts, dtype=np.uint64) + self._byte_offsets

    def addresses_now(self, memories: Sequence[Any]) -> Any:
        """Where the plain tensors lie that these facts have just been found of."""
        starts = np.array([_data_address(memories[place]) for place in self._unique], dtype=np.uint64)
        return starts + self._byte_offsets

    def read(self, values: Sequence[Value], names: Sequence[str], memories: Sequence[Any], addresses: Any) -> Found:
        """Digest everything."""
        groups: dict[str, Group] = {}
        for name, (first, elements, dtypes) in self._totals.items():
            group = groups[name] = Group(first)
            group.elements, group.dtypes = elements, set(dtypes)
        run, readers = self._host
        if run.places:
            words = readers.read(addresses[run.at])
            for name, here, nbytes in run.names:
                groups[name].sum.add_rows(words[here], nbytes)
        for run, order, layouts, device, deliveries in self._later:
            tensors = [memories[place] for place in run.places]
            views = Views(tensors, layouts, addresses[run.at], device.index or 0, torch_twin.stream_of(device))
            gathered = deliveries.ask_together(views)
            for name, here, nbytes in run.names:
                groups[name].sum.add_part(Part(gathered, here, order[here]), nbytes)
        unreadable: list[Unreadable] = []
        for place in self._others:
            _read_other(place, names[place], values[place], groups, unreadable)
        return Found(dict(sorted(groups.items(), key=lambda item: item[1].first)), unreadable)


def _read_other(place: int, name: str, value: Value, groups: dict[str, Group], unreadable: list[Unreadable]) -> None:
    """A number, or a tensor that is not plain."""
    if not isinstance(value, torch.Tensor):
        groups.setdefault(name, Group(place)).add(place, 1, dtype_of(value), digests_of_number(value))
    elif not value.is_meta:
        known = fingerprint(value)
        if isinstance(known, Unreadable):
            unreadable.append(known)
        else:
            groups.setdefault(name, Group(place)).add(place, value.numel(), _name_of(value.dtype), known)


def _facts_of_wrappers(values: Sequence[Any], memories: Sequence[Any]) -> list[tuple[Any, ...]]:
    """What counts of a tensor whose content is another one's, and where it is."""
    if memories is values:
        return []
    pairs = enumerate(zip(values, memories, strict=True))
    return [(place, type(value), value.numel(), value.dtype) for place, (value, memory) in pairs if memory is not value]


def _plain(memory: Any) -> cpu.Reader | Layout | None:
    """How a tensor is read, if by its address alone and there is something to be read; else None."""
    if type(memory) not in _EXACT:
        return None
    plan = plan_of(memory)
    if plan is None or not plan.extent_bytes:
        return None
    is_whole = memory.storage_offset() * memory.itemsize + plan.extent_bytes <= memory.untyped_storage().nbytes()
    return plan if is_whole and _data_address(memory) else None


def _places_in_storage(tensors: Sequence[torch.Tensor]) -> tuple[list[int], list[int]]:
    """Where each begins in its storage, and how large that is: a storage may be freed or made smaller under a tensor."""
    return list(map(_offset, tensors)), list(map(_storage_bytes, map(_storage, tensors)))


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
