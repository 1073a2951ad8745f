"""Hand-written traces, one line per event, for tests that need to say exactly what happened.

    s = Script(tmp_path / "reference")
    w = s.given((4, 4), 1, name="param:w")          # nobody observed who made it
    y = s.op("aten.mm.default", [s.given((2, 4), 2), w], (2, 4), 10, at="self.net(x)")
    s.read(y)                                        # its value leaves for Python
    run = s.close()

A content is a small number: equal numbers are equal bytes; left out, it follows from operator, arguments and what is read.
``Held`` says more (a cast, a permutation).
With a folder everything goes through the real writer and reader, without one through the reader's own assembling of windows.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from opguard_core.align.vocabulary import fold_operator
from opguard_core.trace.codec import to_batch
from opguard_core.trace.manifest import RunManifest, write_manifest
from opguard_core.trace.reader import Run
from opguard_core.trace.schema import EventRow, FrameRow, LaunchRow, LifetimeRow, SlotRow
from opguard_core.trace.writer import TraceWriter
from tests.support.memory import MemoryTrace, MemoryWriter, memory_run

ITEM_BYTES = {"float32": 4, "bfloat16": 2, "int64": 8, "bool": 1}


@dataclass(frozen=True)
class Held:
    """What bytes are held, as its digests; by default all follow from ``word``."""

    word: int
    value: int | None = None  # equal for a cast
    bag: int | None = None  # equal for a permutation

    def digests(self, dtype: str) -> tuple[int, int, int]:
        value = self.word if self.value is None else self.value
        bag = value if self.bag is None else self.bag
        return _hash("mix", self.word, dtype), _hash("value", value), _hash("bag", bag)


def _hash(*words: object) -> int:
    return int.from_bytes(hashlib.sha256(repr(words).encode()).digest()[:8], "little")


@dataclass(frozen=True)
class Tensor:
    """A tensor, or a view of one, as slots show it."""

    storage: int
    shape: tuple[int, ...]
    held: Held
    dtype: str = "float32"
    lo: int = 0
    hi: int | None = None
    name: str = ""
    status: str = "probed"
    trivial: bool | None = None

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]

    def holding(self, content: int | Held) -> Tensor:
        """The same memory with other bytes."""
        return replace(self, held=_held(content))

    def view(self, shape: tuple[int, ...], content: int | Held, lo: int, hi: int) -> Tensor:
        """Another tensor over bytes lo:hi of the same storage."""
        return replace(self, shape=shape, held=_held(content), lo=lo, hi=hi)


def _held(content: int | Held) -> Held:
    return content if isinstance(content, Held) else Held(content)


class Script:
    """Records one rank of one side.

    Args:
        folder: The run's folder; None keeps everything in memory.
        rank: Global rank.
        world_size: Number of ranks.
        mode: Capture mode written to the manifest.
    """

    def __init__(self, folder: Path | None = None, *, rank: int = 0, world_size: int = 1, mode: str = "verify") -> None:
        self.folder = folder
        self.rank, self.world_size, self.mode = rank, world_size, mode
        self.writer: Any = (
            MemoryWriter(rank, world_size, mode)
            if folder is None
            else TraceWriter(folder / f"rank-{rank:05d}", rank=rank, world_size=world_size, mode=mode)
        )
        self.seq = 0
        self.window = 0
        self.clock = 0
        self.storages = 0
        self.phase = "forward"
        self.thread = "main"
        self.frames: dict[tuple[object, ...], int] = {}
        self.stacks: dict[tuple[int, ...], int] = {}
        self.dead: dict[int, int] = {}
        self.born: dict[int, int] = {}
        self.launches: list[LaunchRow] = []

    def given(self, shape: tuple[int, ...], content: int | Held, **facts: Any) -> Tensor:
        """A tensor nobody observed being made."""
        return Tensor(self._storage(), shape, _held(content), **facts)

    def _storage(self) -> int:
        self.storages += 1
        self.born[self.storages - 1] = self.seq
        return self.storages - 1

    def op(
        self,
        operator: str,
        reads: Sequence[Tensor] = (),
        shape: tuple[int, ...] = (4, 4),
        content: int | Held | None = None,
        *,
        into: Tensor | None = None,
        dtype: str = "float32",
        more: Sequence[tuple[tuple[int, ...], int | Held]] = (),
        **facts: Any,
    ) -> Tensor:
        """One operator with one returned tensor (and ``more``), or written ``into`` a tensor it got.

        Keywords: ``at`` (expression), ``file``, ``function``, ``line``, ``calls`` (outer expressions), ``library``
        (file, expression), ``args``, ``phase``, ``module``, ``node``, ``forward``, ``kind``, ``rng`` (stream, state),
        ``name`` of the result, ``thread``, ``status`` of the result, ``trivial``, ``unread`` (slots listed without being probed).
        """
        content = self._derived(operator, facts, reads) if content is None else content
        outs: list[Tensor] = []
        slots = [self._slot(f"in.{at}", "in", tensor) for at, tensor in enumerate(reads)]
        if into is not None:
            result = into.holding(content)
            position = next((at for at, tensor in enumerate(reads) if tensor.storage == into.storage), len(reads))
            slots.append(self._slot(f"mut.{position}", "mut", result))
        else:
            made = Tensor(
                self._storage(), shape, _held(content), dtype, name=facts.get("name", ""), status=facts.get("status", "probed"),
                trivial=facts.get("trivial"),
            )  # fmt: skip
            outs = [made, *(Tensor(self._storage(), size, _held(held), dtype) for size, held in more)]
            slots += [self._slot(f"out.{at}", "out", tensor) for at, tensor in enumerate(outs)]
            result = made
        self.event(operator, slots, **facts)
        return result

    @staticmethod
    def _derived(operator: str, facts: dict[str, Any], reads: Sequence[Tensor]) -> Held:
        """What an operator gives, from what it is given; in-place and not make no difference."""
        held = [tensor.held for tensor in reads]
        key = (fold_operator(operator), facts.get("args", ""), facts.get("rng", ""))
        return Held(_hash(*key, [h.word for h in held]), _hash(*key, [h.value if h.value is not None else h.word for h in held]))

    def outs(self, result: Tensor, count: int) -> list[Tensor]:
        """Tensors returned beside ``result`` by the same operator: they have the storages that follow."""
        return [replace(result, storage=result.storage + 1 + at) for at in range(count)]

    def read(self, tensor: Tensor, **facts: Any) -> None:
        """The value leaves for Python."""
        self.event("aten._local_scalar_dense.default", [self._slot("in.0", "in", tensor)], kind="read", **{"at": "loss.item()", **facts})

    def state(self, **named: Tensor) -> None:
        """The state boundary; keywords are slot names with ``__`` for ``:``."""
        slots = [self._slot(name.replace("__", ":"), "in", replace(tensor, name=name.replace("__", ":"))) for name, tensor in named.items()]
        self.event("opguard.state", slots, kind="state", phase="state", at="opt.step()", line=8)

    def update(self) -> None:
        """The optimizer's update ends, and the window with it."""
        self.marker("opguard.optimizer.end", at="opt.step()", line=8, phase="optimizer")
        self.window += 1

    def marker(self, word: str, **facts: Any) -> None:
        """A marker event."""
        self.event(word, [], kind="marker", **facts)

    def free(self, tensor: Tensor) -> None:
        """The storage was found freed."""
        self.dead[tensor.storage] = self.seq

    def launched(self, kernel: str, count: int = 1, *, kind: str = "kernel") -> None:
        """The event before launched this."""
        self.launches.append(LaunchRow(self.seq - 1, None, len(self.launches), kind, kernel, 0, count, 0, None))

    def loose(self, kernel: str, count: int = 1, *, touches: bool | None = True, kind: str = "kernel") -> None:
        """This was launched now, outside all boundaries."""
        self.launches.append(LaunchRow(None, self.seq - 1 if self.seq else None, len(self.launches), kind, kernel, 0, count, 0, touches))

    def replayed(self, captured_by: int, kernel: str, count: int = 1) -> None:
        """A graph ran now, outside all boundaries, with this kernel, which an event had captured."""
        self.launches.append(LaunchRow(captured_by, self.seq - 1, len(self.launches), "graph", kernel, 0, count, 0, True))

    def event(self, operator: str, slots: list[SlotRow], **facts: Any) -> None:
        """Emit one event with ready slots."""
        stack, user, library = self._places(facts)
        stream, state = facts.get("rng", ("", None))
        self.writer.emit(
            EventRow(
                self.seq, facts.get("kind", "operator"), operator, facts.get("t_host_ns", self.seq * 1000),
                None, None, facts.get("thread", self.thread), 0,
                self.clock, self.window, facts.get("microbatch", 0), facts.get("phase", self.phase),
                facts.get("module", ""), facts.get("node", ""),
                facts.get("forward"), stack, user, library, facts.get("args", ""), stream, state, True,
            ),
            slots,
        )  # fmt: skip
        self.seq += 1
        self.clock += facts.get("kind") == "collective"

    def _slot(self, name: str, direction: str, tensor: Tensor) -> SlotRow:
        shape = ",".join(map(str, tensor.shape))
        known = tensor.status in ("probed", "carried")
        digests = tensor.held.digests(tensor.dtype) if known else (0, 0, 0)
        hi = tensor.lo + tensor.nbytes if tensor.hi is None else tensor.hi
        trivial = math.prod(tensor.shape) <= 2 if tensor.trivial is None else tensor.trivial
        return SlotRow(
            self.seq, name, direction, tensor.status, tensor.dtype, shape, "", "cpu", tensor.storage, tensor.lo, hi, 0, tensor.nbytes,
            *digests, digests[0] & 0xFFFFFFFF, trivial or not known, tensor.name,
        )  # fmt: skip

    def _places(self, facts: dict[str, Any]) -> tuple[int | None, int | None, int | None]:
        text = facts.get("at", "f(x)")
        if text is None:
            return None, None, None
        outer = [self._frame(("train.py", "main", call, "user", at + 1, "a" * 64)) for at, call in enumerate(facts.get("calls", ()))]
        user = self._frame((facts.get("file", "model.py"), facts.get("function", "forward"), text, "user", facts.get("line", 1), "b" * 64))
        library = None
        if "library" in facts:
            file, expression, *digest = facts["library"]
            library = self._frame((file, "lib", expression, "library", 7, digest[0] if digest else "c" * 64))
        members = tuple([*outer, user] + ([library] if library is not None else []))
        if members not in self.stacks:
            self.stacks[members] = len(self.stacks)
            self.writer.stack(self.stacks[members], members)
        return self.stacks[members], user, library

    def _frame(self, key: tuple[Any, ...]) -> int:
        if key not in self.frames:
            self.frames[key] = len(self.frames)
            file, function, text, category, line, source = key
            self.writer.frame(FrameRow(self.frames[key], file, category, function, line, line, 0, len(text), line * 10, text, text, source))
        return self.frames[key]

    def close(self, *, ended: str = "exit", **closing: Any) -> Run:
        """Finish the rank and, when it is the last one, the run; returns it opened."""
        for storage, born in self.born.items():
            self.writer.lifetime(LifetimeRow(storage, 64, born, self.dead.get(storage)))
        if self.launches:
            self.writer.launches(to_batch("launches", self.launches))
        manifest = self.writer.close(ended=ended, **closing)
        if self.folder is None:
            return memory_run([MemoryTrace(self.writer, manifest)])
        ranks = sorted(int(path.name[5:]) for path in self.folder.glob("rank-*"))
        write_manifest(
            self.folder, RunManifest(mode=self.mode, python="3.11", ranks=ranks, complete=True, exit={"code": 0, "signal": None})
        )
        return Run.open(self.folder)
