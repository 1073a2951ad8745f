"""Which arguments a Triton kernel writes, from its own TTIR text.

Pointers are followed from the kernel's arguments through address arithmetic, loops, branches, blocks and calls to the operations that
write. The answer may name an argument too many (two branches, one pointer), never one too few: where a pointer comes out of memory, or
an operation is not known, it is that nothing is known.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

Origins = frozenset[int]
_MEMORY = -1  # stands for a pointer, or a number, that was read from memory
_NONE: Origins = frozenset()
_LOADED: Origins = frozenset({_MEMORY})

_LOC = re.compile(r"\s*\bloc\((?:[^()\"]|\"[^\"]*\"|\((?:[^()\"]|\"[^\"]*\"|\([^()]*\))*\))*\)")
_QUOTED = re.compile(r"\"(?:[^\"\\]|\\.)*\"")
_VALUE = re.compile(r"%[\w.$-]+(?:#\d+)?")
_FUNCTION = re.compile(r"^tt\.func\s+(?:(public|private)\s+)?@(\"[^\"]*\"|[\w.$-]+)\((.*?)\)(?:\s*->|\s*attributes|\s*\{)")
_ARGUMENT = re.compile(r"(%[\w.$-]+)\s*:\s*((?:[^,<>{}]|<(?:[^<>]|<(?:[^<>]|<[^<>]*>)*>)*>|\{[^{}]*\})+)")
_RESULT = re.compile(r"^(%[\w.$-]+)(?::(\d+))?\s*=\s*(.*)$")
_CALL = re.compile(r"^tt\.call\s+@(\"[^\"]*\"|[\w.$-]+)\((.*?)\)")
_BLOCK = re.compile(r"^(\^\w+)(?:\((.*)\))?\s*:")
_TARGET = re.compile(r"(\^\w+)(?:\(([^()]*)\))?")
_WRITES = re.compile(r"store|atomic|scatter|descriptor_reduce|tensormap_create")
_READS = re.compile(r"(?:load|gather|atomic|histogram)")
_BASE_ONLY = frozenset({"tt.addptr", "tt.advance", "tt.make_tensor_ptr", "tt.make_tensor_descriptor", "tt.reinterpret_tensor_descriptor"})
_KNOWN_DIALECTS = ("tt.", "arith.", "math.", "scf.", "cf.", "ub.", "gpu.", "llvm.intr.assume")
_NARROW = ("i1", "i8", "i16", "i32", "f16", "f32", "f64", "bf16", "f8")
_POINTERS = ("!tt.ptr", "!tt.tensordesc")


class Writes(NamedTuple):
    """What a kernel's TTIR says.

    Attributes:
        pointers: Names of its arguments that are pointers or descriptors, in order, as the text spells them.
        written: Positions among those of the ones that it may write.
    """

    pointers: tuple[str, ...]
    written: frozenset[int]


@lru_cache(maxsize=1024)
def writes_of(ttir: str) -> Writes | None:
    """Which pointer arguments the public function of a module writes; None where that cannot be told.

    Cost: about 20 us a line, once a kernel.
    """
    lines = [_LOC.sub("", line).strip() for line in ttir.splitlines() if not line.startswith("#")]
    try:
        walk = _Walk([line for line in lines if line])
        while walk.once():
            pass
    except (IndexError, KeyError, ValueError):
        return None  # no text that we know how to read
    entry, pointers = walk.entry, walk.pointers
    # What is written through a number, or through a pointer out of memory, is anybody's; so is all of a text that is cut off.
    if entry is None or walk.unknown or not walk.written <= set(pointers) or not walk.is_whole:
        return None
    names = tuple(entry.names[at].removeprefix("%") for at in pointers)
    return Writes(names, frozenset(pointers.index(at) for at in walk.written))


class _Function:
    """A function of the module: its arguments, and what they and its results may point to."""

    def __init__(self, names: list[str], kinds: list[str]) -> None:
        self.names, self.kinds = names, kinds
        self.given: list[Origins] = [_NONE] * len(names)
        self.returned: list[Origins] = []


class _Region:
    """A region that is open while its lines are read.

    Attributes:
        number: Line that opened it: names inside are its own.
        operation: What opened it.
        results: Names of that operation's results, by position.
        carried: Names that take over what is yielded, by position.
    """

    def __init__(self, number: int, operation: str, results: list[str], carried: list[str]) -> None:
        self.number, self.operation, self.results, self.carried = number, operation, results, carried


class _Walk:
    """Reads the lines again and again until nothing more is found."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines
        self._known: dict[tuple[int, str], Origins] = {}
        self._blocks: dict[tuple[int, str], list[Origins]] = {}
        self._functions: dict[str, _Function] = {}
        self._open: list[_Region] = []
        self._function: _Function | None = None
        self.entry: _Function | None = None
        self.written: set[int] = set()
        self.unknown = self._changed = False

    @property
    def pointers(self) -> list[int]:
        """Positions of the public function's arguments that are pointers or descriptors."""
        kinds = [] if self.entry is None else self.entry.kinds
        return [at for at, kind in enumerate(kinds) if any(word in kind for word in _POINTERS)]

    @property
    def is_whole(self) -> bool:
        """Whether every region that began has ended."""
        return not self._open

    def once(self) -> bool:
        """Read all lines; whether anything is new."""
        self._changed = self.unknown = False  # of what is not known before all is read, the last reading decides
        self._open = []
        for number, line in enumerate(self._lines):
            self._line(number, line)
        return self._changed

    # -- what values may point to --------------------------------------------------------------------------------------

    def _of(self, name: str) -> Origins:
        for region in reversed(self._open):
            found = self._known.get((region.number, name))
            if found is not None:
                return found
        return _NONE

    def _add(self, name: str, origins: Origins, depth: int = -1) -> None:
        key = (self._open[depth].number, name)
        before = self._known.get(key)
        after = origins if before is None else before | origins
        if after != before:
            self._known[key] = after
            self._changed = True

    def _grow(self, cells: list[Origins], at: int, origins: Origins) -> None:
        while len(cells) <= at:
            cells.append(_NONE)
        if not origins <= cells[at]:
            cells[at] |= origins
            self._changed = True

    # -- lines ---------------------------------------------------------------------------------------------------------

    def _line(self, number: int, line: str) -> None:
        if line.startswith("tt.func"):
            self._begin_function(number, line)
        elif line.startswith("}"):
            self._end_region(number, line)
        elif line.startswith("^"):
            self._begin_block(line)
        elif not line.startswith("module"):
            self._operation(number, line)

    def _begin_function(self, number: int, line: str) -> None:
        found = _FUNCTION.match(line)
        if found is None:
            raise ValueError(line)
        visibility, name, inside = found.groups()
        if name not in self._functions:
            arguments = _ARGUMENT.findall(inside)
            self._functions[name] = _Function([one for one, _ in arguments], [kind for _, kind in arguments])
            self._changed = True
        function = self._function = self._functions[name]
        if visibility != "private" and self.entry in (None, function):
            self.entry = function
            # A number as wide as an address may be one.
            function.given = [_NONE if kind.startswith(_NARROW) else frozenset({at}) for at, kind in enumerate(function.kinds)]
        self._open = [_Region(number, "tt.func", [], [])]
        for one, origins in zip(function.names, function.given, strict=True):
            self._add(one, origins)

    def _end_region(self, number: int, line: str) -> None:
        if not self._open:
            return
        ended = self._open.pop()
        if line.endswith("{"):  # "} else {", "} do {"
            carried = [] if "else" in line else ended.carried
            self._open.append(_Region(number, ended.operation, ended.results, carried))

    def _begin_block(self, line: str) -> None:
        found = _BLOCK.match(line)
        if found is None:
            raise ValueError(line)
        label, inside = found.groups()
        region = self._open[-1]
        names = [name for name, _ in _ARGUMENT.findall(inside or "")]
        if region.operation == "scf.while":
            conditions = self._blocks.get((-1, ",".join(region.results) + str(self._open[-2].number)), [])
            for at, name in enumerate(names):
                self._add(name, conditions[at] if at < len(conditions) else _NONE)
            return
        cells = self._blocks.setdefault((self._open[0].number, label), [])
        for at, name in enumerate(names):
            self._add(name, cells[at] if at < len(cells) else _NONE)

    def _operation(self, number: int, line: str) -> None:
        results: list[str] = []
        match = _RESULT.match(line)
        if match is not None:
            name, count, line = match.group(1), match.group(2), match.group(3)
            results = [name] if count is None else [f"{name}#{at}" for at in range(int(count))]
        operation = line.split(None, 1)[0].strip('"').partition("(")[0].strip('"')
        call = _CALL.match(line)
        if call is not None:
            self._call(call.group(1), _VALUE.findall(call.group(2)), results)
            return
        text = _QUOTED.sub("", line)
        values = _VALUE.findall(text)
        if operation in ("scf.for", "scf.while", "scf.if"):
            self._begin_loop(number, operation, text, results)
            return
        if text.endswith("{"):  # a region whose values are data: of a reduction, a scan, a map
            for name in results:
                self._add(name, _LOADED)
            self._open.append(_Region(number, operation, [], []))
            return
        if operation in ("scf.yield", "scf.condition", "tt.return", "tt.reduce.return", "tt.scan.return"):
            self._give(operation, values)
        elif operation.startswith("cf."):
            self._branch(text)
        else:
            self._plain(operation, text, values, results)

    def _plain(self, operation: str, text: str, values: list[str], results: list[str]) -> None:
        origins = [self._of(value) for value in values]
        pointed = frozenset().union(*origins).intersection(self.pointers)
        if ("pure = false" in text or not operation.startswith(_KNOWN_DIALECTS)) and pointed:
            self.unknown = True
        if _WRITES.search(operation) and origins:
            self._write(origins[0])
        if _READS.search(operation):
            made = _LOADED
        elif operation in _BASE_ONLY:
            made = origins[0]
        elif operation == "arith.select":
            made = frozenset().union(*origins[1:])
        else:
            made = frozenset().union(*origins)
        for name in results:
            self._add(name, made)

    def _write(self, origins: Origins) -> None:
        if not origins:
            self.unknown = True  # written, and nobody knows where
        if not origins <= self.written:
            self.written |= origins
            self._changed = True

    def _call(self, name: str, values: list[str], results: list[str]) -> None:
        function = self._functions.get(name)
        if function is None:  # not read yet, or not there
            self.unknown = True
            return
        for at, value in enumerate(values):
            self._grow(function.given, at, self._of(value))
        for at, result in enumerate(results):
            self._add(result, function.returned[at] if at < len(function.returned) else _NONE)

    def _begin_loop(self, number: int, operation: str, text: str, results: list[str]) -> None:
        carried: list[str] = []
        first: list[Origins] = []
        heads = re.search(r"(?:iter_args|scf\.while\s*)\(([^()]*)\)", text)
        if heads is not None:
            for name, value in re.findall(r"(%[\w.$-]+)\s*=\s*(%[\w.$-]+(?:#\d+)?)", heads.group(1)):
                carried.append(name)
                first.append(self._of(value))
        if operation == "scf.for":
            for at, name in enumerate(results):
                self._add(name, first[at] if at < len(first) else _NONE)
        self._open.append(_Region(number, operation, results, carried))
        for name, origins in zip(carried, first, strict=True):
            self._add(name, origins)

    def _give(self, operation: str, values: list[str]) -> None:
        region = self._open[-1]
        if operation == "tt.return":
            assert self._function is not None
            for at, value in enumerate(values):
                self._grow(self._function.returned, at, self._of(value))
            return
        if operation == "scf.condition":
            values = values[1:]
            cells = self._blocks.setdefault((-1, ",".join(region.results) + str(self._open[-2].number)), [])
            for at, value in enumerate(values):
                self._grow(cells, at, self._of(value))
        elif region.operation in ("scf.for", "scf.while"):
            for name, value in zip(region.carried, values, strict=False):
                self._carry(region, name, self._of(value))
        if operation == "scf.condition" or region.operation in ("scf.for", "scf.if"):
            for name, value in zip(region.results, values, strict=False):
                self._add(name, self._of(value), depth=-2)

    def _carry(self, region: _Region, name: str, origins: Origins) -> None:
        """What is yielded is what the next turn begins with; in a while loop that is the region before."""
        if region.operation == "scf.for":
            self._add(name, origins)
            return
        for number, known in [key for key in self._known if key[1] == name]:
            before = self._known[number, known]
            if not origins <= before:
                self._known[number, known] = before | origins
                self._changed = True

    def _branch(self, text: str) -> None:
        for label, inside in _TARGET.findall(text):
            cells = self._blocks.setdefault((self._open[0].number, label), [])
            for at, value in enumerate(_VALUE.findall(inside)):
                self._grow(cells, at, self._of(value))
