"""The order in which a loader's sampler hands out indices: followed by a running digest, and walked again without data."""

from __future__ import annotations

import copy
import hashlib
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from opguard_core.errors import StateMismatch
from opguard_core.state.streams import generator_state, is_generator, set_generator, unobserved

START = "0" * 32
_PLAIN = (bool, int, float, str, bytes, type(None))
_MAX_ITEMS = 100_000  # an attribute with more is configuration (weights, lengths), not a position
_MAX_TENSOR_BYTES = 64 << 20


class Order:
    """An index sampler that notes what it hands out. Values and moments of its draws are those of the sampler inside.

    Args:
        sampler: The loader's own batch sampler, or sampler where it does no batching.
    """

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler
        self._drawn = START
        self._waiting: deque[str] = deque()
        self._skip, self._expected = 0, START
        self._count, self._known = 0, dict[int, str]()
        self.delivered = START

    @property
    def ahead(self) -> list[str]:
        """Digests of what was handed out and has not come back as a batch: what workers are busy with."""
        return list(self._waiting)

    def stand(self, delivered: str) -> None:
        """Be where another order stood between two epochs."""
        self.begin()
        self.delivered = delivered

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Walk:
        return Walk(self, iter(self.sampler))

    def begin(self, *, skip: int = 0, expected: str = START, known: Mapping[int, str] | None = None) -> None:
        """A new epoch: nothing handed out.

        Args:
            skip: Batches to walk over before the first is handed out.
            expected: Digest of those.
            known: Digests of later batches that were handed out before, by their number from 1.
        """
        self._count, self._known = 0, dict(known or {})
        self._drawn = self.delivered = START
        self._waiting.clear()
        self._skip, self._expected = skip, expected

    def note(self, indices: Any) -> None:
        """Indices were handed out. Cost: some microseconds a batch.

        Raises:
            StateMismatch: They were handed out before, and were others.
        """
        text = f"{self._drawn} {_canonical(indices)}"
        self._drawn = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
        self._waiting.append(self._drawn)
        self._count += 1
        if self._known.pop(self._count, self._drawn) != self._drawn:
            raise _other_indices(f"batch {self._count} of this epoch has")

    def deliver(self) -> None:
        """The program got the batch of the oldest indices that were handed out."""
        if self._waiting:
            self.delivered = self._waiting.popleft()

    def catch_up(self, source: Iterator[Any]) -> None:
        """Walk over what is to be skipped, once.

        Raises:
            StateMismatch: The sampler does not hand out what it did before.
        """
        count, self._skip = self._skip, 0
        done = 0
        for _ in range(count):
            try:
                self.note(next(source))
            except StopIteration:
                break
            done += 1
        self._waiting.clear()
        if done != count or self._drawn != self._expected:
            if count:
                raise _other_indices(f"its first {count} batches of this epoch have")
        self.delivered = self._drawn


def _other_indices(what: str) -> StateMismatch:
    return StateMismatch(
        f"The sampler does not repeat itself: {what} other indices than before.",
        hint="Give it a generator that nothing else draws from, or a `state_dict`, or put it into `extra`; do not train on.",
    )


class Walk:
    """One pass over an `Order`."""

    def __init__(self, order: Order, source: Iterator[Any]) -> None:
        self._order, self._source = order, source

    def __iter__(self) -> Walk:
        return self

    def __next__(self) -> Any:
        self.catch_up()
        indices = next(self._source)
        self._order.note(indices)
        return indices

    def catch_up(self) -> None:
        """Skip what is to be skipped, if that has not happened."""
        if self._order._skip:
            self._order.catch_up(self._source)


def _canonical(value: Any) -> str:
    if type(value) in _PLAIN:
        return repr(value)
    if isinstance(value, torch.Tensor):
        return f"t{value.tolist()}"
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(_canonical, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{_canonical(key)}:{_canonical(item)}' for key, item in value.items())}}}"
    return repr(value) if hasattr(value, "dtype") and hasattr(value, "tobytes") else type(value).__qualname__


def samplers(index_sampler: Any) -> list[Any]:
    """A loader's sampler and those inside it, outermost first."""
    found: list[Any] = []
    while index_sampler is not None and all(index_sampler is not known for known in found):
        found.append(index_sampler)
        inside = getattr(index_sampler, "__dict__", {})
        index_sampler = inside.get("sampler", inside.get("batch_sampler"))
    return found


def sampler_state(sampler: Any) -> dict[str, Any]:
    """Where one sampler stands: its `state_dict`, or its plain attributes, and the generators that it holds."""
    inside = getattr(sampler, "__dict__", {})
    generators = {name: generator_state(value, name) for name, value in inside.items() if is_generator(value)}
    if _is_stateful(sampler):
        with unobserved():  # a copy: many give out what they go on writing to, and keep what they are given
            return {"state": copy.deepcopy(sampler.state_dict()), "generators": generators}
    plain = {name: _copy(value) for name, value in inside.items() if _is_plain(value)}
    return {"plain": plain, "generators": generators}


def set_sampler(sampler: Any, recorded: dict[str, Any]) -> None:
    """Put one sampler where it stood."""
    inside = getattr(sampler, "__dict__", {})
    for name, state in recorded["generators"].items():
        if is_generator(inside.get(name)):
            set_generator(inside[name], state)
    if "state" in recorded:
        with unobserved():
            state = copy.deepcopy(recorded["state"])
        sampler.load_state_dict(state)
        return
    for name, value in recorded["plain"].items():
        inside[name] = _copy(value)


def _is_stateful(sampler: Any) -> bool:
    return callable(getattr(sampler, "state_dict", None)) and callable(getattr(sampler, "load_state_dict", None))


def _is_plain(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return type(value) is torch.Tensor and value.layout is torch.strided and value.nbytes <= _MAX_TENSOR_BYTES
    if type(value) in (list, tuple):
        return len(value) <= _MAX_ITEMS and all(map(_is_plain, value))
    if type(value) is dict:
        return len(value) <= _MAX_ITEMS and all(type(key) in _PLAIN and _is_plain(item) for key, item in value.items())
    return type(value) in _PLAIN


def _copy(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        with unobserved():
            return value.detach().clone()
    if type(value) in (list, tuple):
        return type(value)(map(_copy, value))
    if type(value) is dict:
        return {key: _copy(item) for key, item in value.items()}
    return value
