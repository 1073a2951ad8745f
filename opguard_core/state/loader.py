"""A DataLoader whose position can be kept and taken up again, in mid-epoch, with workers, to the bit.

The batches are those of the loader inside. To go on in mid-epoch the sampler is walked again from where the epoch began,
without reading data; each worker goes on from the state that it told with its last batch. Only where that cannot be done (an
iterable dataset, a dataset with random state of its own) the batches are read again: ``replay``.
"""

from __future__ import annotations

import copy
import weakref
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from opguard_core.errors import StateMismatch, StateUnsupported
from opguard_core.state.order import Order, sampler_state, samplers, set_sampler
from opguard_core.state.streams import generator_state, process_streams, set_generator, set_process_streams
from opguard_core.state.workers import Restart, RestartedIterator, Resuming, Telling, WorkerStates

_SETTINGS = ("num_replicas", "rank", "seed", "shuffle", "replacement", "_num_samples", "drop_last", "batch_size")


class ResumableLoader:
    """Iterates a DataLoader and knows where it is.

    Everything else is the loader's: ``len``, ``dataset``, ``sampler`` and so on. One iteration at a time.

    Args:
        loader: A DataLoader; not a subclass that iterates in its own way. It is not changed.
        replay: Read skipped batches again when resuming, and throw them away. Needed where the dataset keeps random state of
            its own (not torch's, numpy's or Python's global one) and has no ``state_dict``. None: only for iterable
            datasets, which know no other way. Cost: the time it takes to load them.

    Attributes:
        epoch: Epochs that were finished or abandoned: the number of the one that is under way, 0-based.
        batch: Batches that the program has got in this epoch.

    Raises:
        StateUnsupported: The loader cannot be resumed.
    """

    def __init__(self, loader: DataLoader[Any], *, replay: bool | None = None) -> None:
        kind = type(loader)
        if (
            not isinstance(loader, DataLoader)
            or kind.__iter__ is not DataLoader.__iter__
            or kind._get_iterator is not DataLoader._get_iterator
        ):
            raise StateUnsupported(f"A {kind.__qualname__} iterates in its own way.", hint="Wrap a torch.utils.data.DataLoader itself.")
        if loader.num_workers > 0 and not getattr(loader, "in_order", True):
            raise StateUnsupported("A DataLoader with in_order=False gives its batches in an order of chance.", hint="Set in_order=True.")
        self._loader = loader
        iterable = isinstance(loader.dataset, IterableDataset)
        self._replay = iterable if replay is None else replay
        if iterable and not self._replay:
            raise StateUnsupported("An iterable dataset can only be replayed.", hint="Leave `replay` out.")
        self._order = Order(loader._index_sampler)
        self._samplers = samplers(loader._index_sampler)
        self._inner = self._copy(loader)
        self._persistent = loader.persistent_workers and loader.num_workers > 0
        self.epoch = self.batch = 0
        self._open = False
        self._began: dict[str, Any] = {}
        self._workers: WorkerStates = {}
        self._workers_at_epoch: WorkerStates = {}
        self._base_seed: int | None = None
        self._fresh = True
        # Weak: a cycle would have the iterator end by garbage collection, which leaves its workers waiting for their queues.
        self._current: weakref.ref[Delivery] | None = None
        self._pending: dict[str, Any] | None = None

    def _copy(self, loader: DataLoader[Any]) -> DataLoader[Any]:
        """The same loader with our sampler around its own, and workers that tell their state."""
        inner = copy.copy(loader)
        inner.__dict__["batch_sampler" if loader._auto_collation else "sampler"] = self._order
        if loader.num_workers > 0:
            inner.collate_fn = Telling(loader.collate_fn)
        return inner

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_loader" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self._loader, name)

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Delivery:
        pending, self._pending = self._pending, None
        if pending is not None:
            return self._deliver(self._resumed(pending))
        if self._open:
            self.epoch += 1
        self._begin_epoch()
        iterator = iter(self._inner)
        self._base_seed = iterator._base_seed
        return self._deliver(iterator)

    def _deliver(self, iterator: Any) -> Delivery:
        delivery = Delivery(self, iterator)
        self._current = weakref.ref(delivery)
        return delivery

    def _is_current(self, delivery: Delivery) -> bool:
        return self._current is not None and self._current() is delivery

    def _begin_epoch(self) -> None:
        self._fresh = not self._persistent or self._inner._iterator is None
        self._began = self._streams()
        self._workers = dict(self._workers) if self._persistent else {}
        self._workers_at_epoch = dict(self._workers)
        self._order.begin()
        self.batch, self._open = 0, True

    def got(self, delivery: Delivery, item: Any) -> Any:
        """A batch came out; take off what the worker told."""
        told = None
        if self._inner.num_workers > 0:
            item, told = item
        if self._is_current(delivery):
            if told is not None:
                self._workers[told.pop("worker")] = told
            self._order.deliver()
            self.batch += 1
        return item

    def ended(self, delivery: Delivery) -> None:
        """The epoch is over."""
        if self._is_current(delivery) and self._open:
            self._current, self._open = None, False
            self.epoch, self.batch = self.epoch + 1, 0

    # Where it stands.

    def _streams(self) -> dict[str, Any]:
        generator = self._loader.generator
        return {
            "process": process_streams(),
            "loader": None if generator is None else generator_state(generator, "the loader's generator"),
            "samplers": [sampler_state(sampler) for sampler in self._samplers],
        }

    def _set_streams(self, streams: dict[str, Any]) -> None:
        for sampler, state in zip(self._samplers, streams["samplers"], strict=True):
            set_sampler(sampler, state)
        if streams["loader"] is not None and self._loader.generator is not None:
            set_generator(self._loader.generator, streams["loader"])
        set_process_streams(streams["process"])

    def _facts(self) -> dict[str, Any]:
        loader = self._loader
        return {
            "dataset": type(loader.dataset).__qualname__,
            "length": len(loader.dataset) if hasattr(loader.dataset, "__len__") else None,
            "samplers": [type(sampler).__qualname__ for sampler in self._samplers],
            "settings": [_settings(sampler) for sampler in self._samplers],
            "batch_size": loader.batch_size,
            "drop_last": loader.drop_last,
            "num_workers": loader.num_workers,
            "persistent_workers": loader.persistent_workers,
            "generator": loader.generator is not None,
        }

    def state_dict(self) -> dict[str, Any]:
        """The position, as plain data; see `snapshot`."""
        if self._pending is not None:
            return self._pending
        return {
            "facts": self._facts(),
            "epoch": self.epoch,
            "batch": self.batch,
            "open": self._open,
            "order": self._order.delivered,
            "ahead": self._order.ahead if self._open else [],
            "began": self._began,
            "now": self._streams(),
            "base_seed": self._base_seed,
            "fresh": self._fresh,
            "workers": dict(self._workers),
            "workers_at_epoch": dict(self._workers_at_epoch),
        }

    def misfits(self, state: dict[str, Any]) -> list[str]:
        """What of a position does not fit this loader, as sentences."""
        here, there = self._facts(), state["facts"]
        return [f"{key} is {there.get(key)!r} in the snapshot and {here[key]!r} here" for key in here if here[key] != there.get(key)]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take a position up; the next iteration goes on from there.

        Raises:
            StateMismatch: It is another loader's; nothing was changed.
        """
        problems = self.misfits(state)
        if problems:
            raise StateMismatch(f"The loader is not the one of the snapshot: {'; '.join(problems)}.")
        self._set_streams({**state["now"], "process": process_streams()})
        self.epoch, self.batch, self._open = state["epoch"], state["batch"], state["open"]
        self._current = None
        self._inner._iterator = None
        self._workers, self._base_seed = dict(state["workers"]), state["base_seed"]
        self._began, self._fresh, self._workers_at_epoch = state["began"], state["fresh"], dict(state["workers_at_epoch"])
        self._order.stand(state["order"])
        self._pending = state if self._open or (self._persistent and state["base_seed"] is not None) else None

    # Going on.

    def _resumed(self, state: dict[str, Any]) -> Any:
        """An iterator that stands where the position says; all streams are left as they were when it was asked for."""
        held = self._streams()
        if not state["open"]:  # between two epochs, with workers that live on: they go on from their state
            self._begin_epoch()
            self._fresh, began = False, held
            workers, skip, turn, replay = state["workers"], 0, 0, 0
        else:
            self._fresh, began, self._began = state["fresh"], state["began"], state["began"]
            self._workers_at_epoch = dict(state["workers_at_epoch"])
            self.batch, self._open = state["batch"], True
            replay = state["batch"] if self._replay else 0
            skip = state["batch"] - replay
            workers = state["workers_at_epoch"] if self._replay else state["workers"]
            turn = skip % self._inner.num_workers if self._inner.num_workers else 0
        self._workers = dict(state["workers"])
        known = {state["batch"] + number: digest for number, digest in enumerate(state["ahead"], 1)}
        self._order.begin(skip=skip, expected=state["order"], known=known)
        self._set_streams(began)
        iterator = self._start(state, began, workers, turn)
        for _ in range(replay):
            next(iterator)
            self._order.deliver()
        if state["open"] and self._order.delivered != state["order"] and replay:
            raise StateMismatch(
                f"The sampler does not repeat itself: its first {replay} batches of this epoch have other indices than before.",
                hint="Give it a generator that nothing else draws from; do not train on.",
            )
        if state["open"]:
            self._set_streams(held)
        return iterator

    def _start(self, state: dict[str, Any], began: dict[str, Any], workers: WorkerStates, turn: int) -> Any:
        inner = self._inner
        if inner.num_workers == 0:
            iterator = iter(inner)
            iterator._sampler_iter.catch_up()
            self._base_seed = iterator._base_seed
            return iterator
        own = inner.worker_init_fn
        inner.worker_init_fn = Resuming(own, workers)
        # Workers of an earlier epoch were started, and their seed drawn, before this epoch began.
        restart = Restart(lambda: None, turn) if self._fresh else Restart(lambda: self._set_streams(began), turn, state["base_seed"])
        try:
            iterator = RestartedIterator(inner, restart)
        finally:
            inner.worker_init_fn = own
        if self._persistent:
            inner._iterator = iterator
        self._base_seed = iterator._base_seed
        if self._base_seed != state["base_seed"]:
            raise StateMismatch(
                f"The workers' seed would be {self._base_seed} where it was {state['base_seed']}.",
                hint="Give the loader a generator that nothing else draws from; do not train on.",
            )
        return iterator


class Delivery:
    """One iteration over a `ResumableLoader`."""

    def __init__(self, owner: ResumableLoader, iterator: Any) -> None:
        self._owner, self.iterator = owner, iterator

    def __iter__(self) -> Delivery:
        return self

    def __len__(self) -> int:
        return len(self.iterator)

    def __next__(self) -> Any:
        try:
            item = next(self.iterator)
        except StopIteration:
            self._owner.ended(self)
            raise
        return self._owner.got(self, item)


def _settings(sampler: Any) -> dict[str, Any]:
    """Settings of a sampler that must be as they were; what moves while it is used is not among them."""
    inside = getattr(sampler, "__dict__", {})
    return {name: inside[name] for name in _SETTINGS if type(inside.get(name)) in (bool, int)}
