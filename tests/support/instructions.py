"""Instructions of a made-up training program: what the synthetic traces are traces of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Site(NamedTuple):
    """A place in the made-up source; `text` is what stands there."""

    file: str
    function: str
    line: int
    text: str
    category: str = "user"


class Out(NamedTuple):
    """One output of an instruction.

    Attributes:
        var: Variable that holds it afterwards.
        shape: Its shape.
        dtype: Its dtype.
        effect: "compute" (a new value), "keep" (the first input's bytes), "cast" (its values in another dtype),
            "transpose" (its elements in another layout).
        name: Parameter, buffer or state name, as in SLOTS.
    """

    var: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    effect: str = "compute"
    name: str = ""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One event to be.

    Attributes:
        operator: Operator or marker name.
        reads: Variables read, in argument order.
        outs: Returned tensors.
        mutates: Those of ``reads`` that are written in place (new value each).
        site: Innermost user place.
        calls: Places of the callers, outermost first.
        library: Innermost library place, if the call went through one.
        kind, phase, module, node, args, thread: As in EVENTS.
        rng: Generator consumed, or "".
        lists: Number of list arguments of equal length that ``reads`` consists of; 0 if the arguments are single tensors.
        forward: Key of the forward instruction, for backward ones.
        key: Stable name inside one iteration; what `forward` refers to.
        ends_microbatch, ends_window, collective: What executing it does to the counters.
        role: What it is for: "compute", "neutral" (keeps bytes, may be left out), "log" (nobody reads it), "data", "init",
            "read", "state", "optimizer", "collective", "marker".
    """

    operator: str
    reads: tuple[str, ...] = ()
    outs: tuple[Out, ...] = ()
    mutates: tuple[str, ...] = ()
    site: Site | None = None
    calls: tuple[Site, ...] = ()
    library: Site | None = None
    kind: str = "operator"
    phase: str = "forward"
    module: str = ""
    node: str = ""
    args: str = ""
    thread: str = "main"
    rng: str = ""
    lists: int = 0
    forward: str = ""
    key: str = ""
    ends_microbatch: bool = False
    ends_window: bool = False
    collective: bool = False
    role: str = "compute"


@dataclass(frozen=True)
class Program:
    """A training run as instructions: once ``prologue``, ``body`` for each step, once ``epilogue``.

    An index counts instructions over the whole run; without edits it is also the ``seq`` of the event.
    """

    prologue: tuple[Instruction, ...]
    body: tuple[Instruction, ...]
    epilogue: tuple[Instruction, ...]
    steps: int

    def __len__(self) -> int:
        return len(self.prologue) + self.steps * len(self.body) + len(self.epilogue)

    def __getitem__(self, index: int) -> Instruction:
        if not 0 <= index < len(self):
            raise IndexError(index)
        if index < len(self.prologue):
            return self.prologue[index]
        index -= len(self.prologue)
        if index < self.steps * len(self.body):
            return self.body[index % len(self.body)]
        return self.epilogue[index - self.steps * len(self.body)]

    def start_of(self, step: int) -> int:
        """Index of the first instruction of a step's body."""
        return len(self.prologue) + step * len(self.body)

    def find(self, step: int, **wanted: object) -> list[int]:
        """Indices within one step of the instructions whose attributes equal ``wanted``, for example ``role="compute"``."""
        start = self.start_of(step)
        return [
            start + offset
            for offset, instruction in enumerate(self.body)
            if all(getattr(instruction, name) == value for name, value in wanted.items())
        ]
