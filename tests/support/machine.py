"""Executes instructions symbolically: digests follow the dataflow, so equal programs give equal digests and a change
shows in everything downstream of it, and nowhere else."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, NamedTuple

from opguard_core.engines.protocol import EventSink
from opguard_core.trace.schema import EventRow, FrameRow, LifetimeRow, SlotRow
from opguard_core.trace.sources import source_digest
from tests.support.instructions import Instruction, Out, Site

MASK = 2**64 - 1
ITEM_BYTES = {"float32": 4, "bfloat16": 2, "int64": 8, "bool": 1}


def mix(word: int) -> int:
    """Bijective mixer of 64-bit words (SplitMix64's finaliser)."""
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & MASK
    return word ^ (word >> 31)


@cache
def salt(*words: object) -> int:
    """A 64-bit number for a text, the same in every process."""
    return int.from_bytes(hashlib.sha256(repr(words).encode()).digest()[:8], "little")


class Content(NamedTuple):
    """What a tensor holds, as its digests."""

    mix64: int
    value64: int
    bag64: int

    @classmethod
    def fresh(cls, seed: int) -> Content:
        word = mix(seed)
        return cls(word, mix(word ^ 0x9E3779B97F4A7C15), mix(word + 0x632BE59BD9B4E019 & MASK))

    def changed(self) -> Content:
        """Another content that depends on this one alone."""
        return Content.fresh(self.mix64 ^ 0x5555)


class Tensor:
    """A made-up tensor: content, and the facts of SLOTS about it."""

    __slots__ = ("born", "content", "dtype", "holders", "name", "nbytes", "shape", "storage", "strides", "trivial", "version")

    def __init__(self, out: Out, content: Content, storage: int, born: int) -> None:
        numel = math.prod(out.shape)
        self.content = content
        self.dtype = out.dtype
        self.shape = ",".join(map(str, out.shape))
        self.strides = ",".join(str(math.prod(out.shape[axis + 1 :])) for axis in range(len(out.shape)))
        self.nbytes = numel * ITEM_BYTES[out.dtype]
        self.storage = storage
        self.version = 0
        self.trivial = numel <= 2
        self.name = out.name
        self.born = born
        self.holders = 1  # variables that refer to it


class Machine:
    """Runs instructions and emits what an engine would have seen.

    Args:
        sink: Receives the events.
        rank: Makes data and random streams of ranks differ.
        mode: "verify", or "full" (inputs that nobody wrote since are CARRIED).
    """

    def __init__(self, sink: EventSink, *, rank: int = 0, mode: str = "full", sources: Mapping[str, str] | None = None) -> None:
        self.sink = sink
        self.sources = sources or {}
        self.rank = rank
        self.mode = mode
        self.seq = 0
        self.window = 0
        self.microbatch = 0
        self.clock = 0
        self.variables: dict[str, Tensor] = {}
        self.generators: dict[str, int] = {}
        self.forward: dict[str, int] = {}
        self.num_storages = 0
        self.shapes: dict[int, tuple[Any, ...]] = {}
        self.frames: dict[Site, int] = {}
        self.stacks: dict[tuple[int, ...], int] = {}
        self.threads: dict[str, int] = {}

    def run(self, instruction: Instruction, *, corrupt: int | None = None) -> None:
        """Execute one instruction; ``corrupt`` names an output (or mutated argument) whose content comes out wrong."""
        seq, variables = self.seq, self.variables
        tensors = [self._variable(name) for name in instruction.reads]
        names = self._shape_of(instruction)[1]
        slots = [self._slot(name, "in", tensor) for name, tensor in zip(names, tensors, strict=True)]
        rng_before = self._consume(instruction.rng) if instruction.rng else None
        seed = salt(instruction.operator, instruction.args)
        if instruction.role == "data":
            seed ^= mix(self.window * 1000 + self.rank)
        for tensor in tensors:
            seed = (seed * 0x9E3779B97F4A7C15 + tensor.content.mix64) & MASK
        seed ^= rng_before or 0
        for position, name in enumerate(instruction.mutates):
            tensor = variables[name]
            tensor.content = Content.fresh(seed + position)
            tensor.version += 1
            if corrupt == position:
                tensor.content = tensor.content.changed()
            slots.append(self._slot(f"mut{names[instruction.reads.index(name)][2:]}", "mut", tensor))
        for position, out in enumerate(instruction.outs):
            content = self._content(out, seed + 101 + position, tensors)
            if corrupt == position:
                content = content.changed()
            tensor = Tensor(out, content, self.num_storages, seq)
            self.num_storages += 1
            self._assign(out.var, tensor)
            slots.append(self._slot(f"out.{position}", "out", tensor))
        self._emit(instruction, slots, rng_before)

    def _content(self, out: Out, seed: int, tensors: list[Tensor]) -> Content:
        fresh = Content.fresh(seed & MASK)
        if out.effect == "compute":
            return fresh
        kept = tensors[0].content
        if out.effect == "keep":
            return kept
        if out.effect == "cast":
            return Content(fresh.mix64, kept.value64, kept.bag64)
        assert out.effect in ("transpose", "permute"), out.effect
        return Content(fresh.mix64, fresh.value64, kept.bag64)

    def skip(self, instruction: Instruction) -> None:
        """Leave an instruction out: whoever reads its outputs gets its first input."""
        for out in instruction.outs:
            if instruction.reads:
                kept = self._variable(instruction.reads[0])
                kept.holders += 1
                self._assign(out.var, kept)

    def overwrite(self, variable: str) -> None:
        """Change a tensor without any event, as a race or a write through `.data` would."""
        tensor = self._variable(variable)
        tensor.content = tensor.content.changed()

    def _variable(self, name: str) -> Tensor:
        if name not in self.variables:
            # Only after edits: a reader of something that was never made sees an input from outside.
            self.variables[name] = Tensor(Out(name, (4, 4)), Content.fresh(salt("outside", name)), self.num_storages, self.seq)
            self.num_storages += 1
        return self.variables[name]

    def _consume(self, generator: str) -> int:
        before = self.generators.setdefault(generator, mix(salt(generator, self.rank)))
        self.generators[generator] = mix(before + 1 & MASK)
        return before

    def reseed(self, generator: str) -> None:
        """Move a random stream."""
        self.generators[generator] = mix(self.generators.get(generator, 0) ^ 0xABCDEF)

    def _slot(self, name: str, direction: str, tensor: Tensor) -> SlotRow:
        status = "carried" if direction == "in" and self.mode != "verify" else "probed"
        mix64, value64, bag64 = tensor.content
        return SlotRow(
            self.seq,
            name,
            direction,
            status,
            tensor.dtype,
            tensor.shape,
            tensor.strides,
            "cpu",
            tensor.storage,
            0,
            tensor.nbytes,
            tensor.version,
            tensor.nbytes,
            mix64,
            value64,
            bag64,
            (mix64 ^ (mix64 >> 32)) & 0xFFFFFFFF,
            tensor.trivial,
            tensor.name,
        )

    def _emit(self, instruction: Instruction, slots: list[SlotRow], rng_before: int | None) -> None:
        stack, user, library = self._shape_of(instruction)[2:]
        self.sink.emit(
            EventRow(
                self.seq,
                instruction.kind,
                instruction.operator,
                # Irregular, as clocks are, so that sizes on disk are honest.
                1_000_000_000 + self.seq * 21_000 + mix(self.seq) % 9_000,
                None,
                None,
                instruction.thread,
                self.threads.setdefault(instruction.thread, len(self.threads)),
                self.clock,
                self.window,
                self.microbatch,
                instruction.phase,
                instruction.module,
                instruction.node,
                self.forward.get(instruction.forward) if instruction.forward else None,
                stack,
                user,
                library,
                instruction.args,
                instruction.rng,
                rng_before,
                instruction.phase in ("forward", "recompute"),
            ),
            slots,
        )
        if instruction.key:
            self.forward[instruction.key] = self.seq
        self.seq += 1
        self.clock += instruction.collective
        self.microbatch += instruction.ends_microbatch
        if instruction.ends_window:
            self.window, self.microbatch = self.window + 1, 0

    def _shape_of(self, instruction: Instruction) -> tuple[Any, ...]:
        """Facts that do not change between executions: the instruction (kept alive), input slot names, stack and frames."""
        known = self.shapes.get(id(instruction))
        if known is None:
            known = self.shapes[id(instruction)] = (instruction, _slot_names(instruction), *self._places(instruction))
        return known

    def _places(self, instruction: Instruction) -> tuple[int | None, int | None, int | None]:
        if instruction.site is None:
            return None, None, None
        calls = [self._frame(site) for site in instruction.calls]
        user = self._frame(instruction.site)
        library = self._frame(instruction.library) if instruction.library else None
        members = (*calls, user) if library is None else (*calls, user, library)
        if members not in self.stacks:
            self.stacks[members] = len(self.stacks)
            self.sink.stack(self.stacks[members], members)
        return self.stacks[members], user, library

    def _frame(self, site: Site) -> int:
        if site not in self.frames:
            frame = self.frames[site] = len(self.frames)
            source = self.sources.get(site.file, f"# {site.file}\n")
            self.sink.source(source_digest(source), source)
            self.sink.frame(
                FrameRow(
                    frame,
                    site.file,
                    site.category,
                    site.function,
                    site.line,
                    site.line,
                    8,
                    8 + len(site.text),
                    site.line * 20,
                    site.text,
                    site.text,
                    source_digest(source),
                )
            )
        return self.frames[site]

    def _assign(self, variable: str, tensor: Tensor) -> None:
        old = self.variables.get(variable)
        self.variables[variable] = tensor
        if old is not None:
            old.holders -= 1
            if not old.holders:
                self.sink.lifetime(LifetimeRow(old.storage, old.nbytes, old.born, self.seq))

    def finish(self) -> None:
        """Say what is alive at the end."""
        alive: Iterable[Tensor] = {id(tensor): tensor for tensor in self.variables.values()}.values()
        for tensor in alive:
            self.sink.lifetime(LifetimeRow(tensor.storage, tensor.nbytes, tensor.born, None))


def _slot_names(instruction: Instruction) -> tuple[str, ...]:
    """Names of the input slots, in order."""
    if instruction.kind == "state":
        prefixes = {"p": "param", "grad": "grad"}
        pairs = [name.split(":", 1) for name in instruction.reads]
        return tuple(f"{prefixes[kind]}:{name}" if kind in prefixes else f"optim:{name}.{kind}" for kind, name in pairs)
    if instruction.lists:
        length = len(instruction.reads) // instruction.lists
        return tuple(f"in.{position // length}.{position % length}" for position in range(len(instruction.reads)))
    return tuple(f"in.{position}" for position in range(len(instruction.reads)))
