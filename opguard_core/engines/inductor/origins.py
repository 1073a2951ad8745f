"""From a line of generated code to the lines of the program that it was made from.

A generated kernel is many operators of the program at once. Inductor knows them while it generates code (`nodes_of`); of code that comes
from a cache they are known if we were there when it was generated (kept aside, in our own folder, by the text of the code), or by the
names and the one stack that Inductor keeps with it. A cache may be of another folder or of an older text of the same function, so every
line is looked up again in the graph that the program has just been traced to.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from opguard_core.builds import folder, keeping

_FRAME = re.compile(r'File "(?P<file>.+?)", line (?P<line>\d+), in (?P<function>.+?)\n(?:[ \t]+(?P<text>\S.*)\n?)?')
_WORDS = re.compile(r"[a-z]+(?:_[a-z]+)*")
FX_FILE = "<eval_with_key>"  # file of code that torch writes for a graph; a number follows
MAX_LINES = 16
_NAME, _SUFFIX = "kernel_origins", ".json"


class Line(NamedTuple):
    """One line of the program, as a traced graph tells it."""

    file: str
    line: int
    function: str
    text: str


class Node(NamedTuple):
    """One node of a graph that went into a kernel.

    Attributes:
        name: In the graph that the program was traced to; empty for one that came with the backward, whose own name is another graph's.
        operator: The ATen operator it is, or was before it was decomposed.
        lines: Its stack, outermost first; empty if unknown.
    """

    name: str
    operator: str
    lines: tuple[Line, ...]


def lines_of(stack_trace: str | None) -> tuple[Line, ...]:
    """The frames of a node's ``stack_trace``, outermost first, without those of code that torch wrote for another graph."""
    found = [one for one in _FRAME.finditer(stack_trace or "") if not one["file"].startswith(FX_FILE)]
    return tuple(Line(one["file"], int(one["line"]), one["function"].strip(), (one["text"] or "").strip()) for one in found)


def nodes_of(schedule: Iterable[Any]) -> tuple[Node, ...]:
    """The nodes behind the scheduler nodes of one kernel, in the order of their graph."""
    found: dict[Any, None] = {}
    for one in schedule:
        for inner in one.get_nodes() if hasattr(one, "get_nodes") else (one,):
            buffer = getattr(inner, "node", None)
            for origin in getattr(buffer, "origins", None) or ():
                if origin.op == "call_function":
                    found[origin] = None
    graphs = {id(node.graph): node.graph for node in found}
    order = {node: (number, index) for number, graph in enumerate(graphs.values()) for index, node in enumerate(graph.nodes)}
    return tuple(_node(node) for node in sorted(found, key=lambda node: order.get(node, (0, 0))))


def _node(node: Any) -> Node:
    source = node.meta.get("from_node")
    name = source[0].name if source else ""
    operator = node.meta.get("original_aten") or node.target
    packet = getattr(operator, "_overloadpacket", None)
    return Node(str(name), str(packet or "").removeprefix("aten."), lines_of(node.meta.get("stack_trace")))


def graphs_in(graph: Any) -> Iterator[Any]:
    """A graph, and those that its operators are given: bodies of checkpoints, of conditions, of the program's own autograd functions."""
    yield graph
    for node in graph.nodes:
        inner = inner_graph(node)
        if inner is not None:
            yield from graphs_in(inner)


def inner_graph(node: Any) -> Any:
    """The graph that a node hands to an operator, None if it hands over something else."""
    if node.op != "get_attr":
        return None
    found = getattr(node.graph, "owning_module", None)
    for name in str(node.target).split("."):
        found = getattr(found, name, None)
    return getattr(found, "graph", None) if isinstance(getattr(found, "graph", None), type(node.graph)) else None


class Traced:
    """The graph that one region of the program was traced to, just now: names of its nodes and their lines.

    Args:
        graph: ``torch.fx.Graph`` as the compiler got it.
    """

    def __init__(self, graph: Any) -> None:
        self.by_name: dict[str, tuple[Line, ...]] = {}
        self._by_text: dict[tuple[str, str], list[Line]] = {}
        self.operators: list[tuple[frozenset[str], tuple[Line, ...]]] = []
        named: dict[str, set[tuple[Line, ...]]] = {}
        self._of_backward = False  # what was traced is a graph that compiled autograd made of a backward
        for node in (node for one in graphs_in(graph) for node in one.nodes):
            trace = node.meta.get("stack_trace")
            lines = lines_of(trace)
            self._of_backward |= FX_FILE in (trace or "")
            if not lines:
                continue
            named.setdefault(node.name, set()).add(lines)
            target = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
            self.operators.append((frozenset(_WORDS.findall(target.lower().replace("_", " "))), lines))
            for line in lines:
                same = self._by_text.setdefault((line.function, line.text), [])
                if line not in same:
                    same.append(line)
        # Each graph names its nodes by itself: a name that two of them gave says nothing.
        self.by_name = {name: next(iter(lines)) for name, lines in named.items() if len(lines) == 1}

    @property
    def first(self) -> Line | None:
        """Where the region begins; None for a backward, which begins wherever its graph happens to."""
        return None if self._of_backward else next((lines[0] for _, lines in self.operators), None)

    def now(self, line: Line) -> Line | None:
        """A line as the program has it now; None if it has no such line (any more)."""
        same = self._by_text.get((line.function, line.text))
        return min(same, key=lambda one: (one.file != line.file, abs(one.line - line.line))) if same else None


class Origins:
    """Where each line of one generated module comes from.

    Args:
        nodes: Nodes of each launch, by kernel and occurrence, if known.
        names: Names that Inductor wrote above lines of the module.
        stacks: Pairs of first line and ``stack_trace`` that Inductor keeps with the module.
        traced: The graph that the program was traced to; None if we were not there.
    """

    def __init__(
        self,
        nodes: Mapping[str, Sequence[tuple[Node, ...]]],
        names: Mapping[int, tuple[str, ...]],
        stacks: Sequence[tuple[int, Any]],
        traced: Traced | None,
    ) -> None:
        self._nodes, self._names, self._traced = nodes, names, traced
        self._stacks = sorted((int(line), str(stack or "")) for line, stack in stacks)
        self._found: dict[int, tuple[tuple[Line, ...], ...]] = {}

    def at(self, line: int, launch: tuple[str, int] | None) -> tuple[tuple[Line, ...], ...]:
        """`of_launch` of a (kernel, occurrence), or `of_line`; worked out once for a line: each caller of a region makes new stacks."""
        found = self._found.get(line)
        if found is None:
            found = self._found[line] = self.of_line(line) if launch is None else self.of_launch(*launch, line)
        return found

    def of_launch(self, kernel: str, occurrence: int, line: int) -> tuple[tuple[Line, ...], ...]:
        """Stacks of the program, one for each line that a launch comes from, in the order of the graph."""
        known = self._nodes.get(kernel, ())
        if occurrence < len(known):
            # A node of the forward is found by its name in the graph of now; one of a backward only by the text of its line.
            found = self._current([self._by_name(node.name) or node.lines for node in known[occurrence]])
            found = found or self._by_operators({node.operator for node in known[occurrence]})
            if found:
                return found
        named = self._current([self._by_name(name) for name in self._names.get(line, ())])
        return named or self._by_operators(set(kernel.split("_"))) or self.of_line(line)

    def of_line(self, line: int) -> tuple[tuple[Line, ...], ...]:
        """As `of_launch`, of a call of a library."""
        stack = next((stack for first, stack in reversed(self._stacks) if first <= line), "")
        named = [self._by_name(name) for name in self._names.get(line, ())[-1:]]
        return self._current([lines_of(stack)]) or self._current(named) or self._whole()

    def _by_name(self, name: str) -> tuple[Line, ...]:
        return self._traced.by_name.get(name, ()) if self._traced is not None else ()

    def _by_operators(self, words: set[str]) -> tuple[tuple[Line, ...], ...]:
        """All lines of these operators, where nothing better is known."""
        return self._current([lines for target, lines in self._traced.operators if target & words]) if self._traced is not None else ()

    def _whole(self) -> tuple[tuple[Line, ...], ...]:
        first = None if self._traced is None else self._traced.first
        return () if first is None else ((first,),)

    def _current(self, stacks: Iterable[tuple[Line, ...]]) -> tuple[tuple[Line, ...], ...]:
        found: dict[Line, tuple[Line, ...]] = {}
        for stack in stacks:
            if self._traced is not None:
                stack = tuple(now for line in stack if (now := self._traced.now(line)) is not None)
            if stack:
                found.pop(stack[-1], None)
                found[stack[-1]] = stack
        return tuple(found.values())[-MAX_LINES:]


def keep(text: str, nodes: Mapping[str, Sequence[tuple[Node, ...]]]) -> None:
    """Remember the nodes behind a generated module for a later process that takes it from Inductor's cache."""
    content = json.dumps({kernel: [[list(node) for node in launch] for launch in launches] for kernel, launches in nodes.items()})
    keeping.keep(_NAME, [text.encode()], content.encode, suffix=_SUFFIX, seconds=1.0)


def kept(text: str) -> dict[str, list[tuple[Node, ...]]]:
    """What `keep` remembered of a module; nothing if we were not there when it was generated."""
    with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
        path = folder.find(folder.private_folder(), _NAME, keeping.digest_of([text.encode()]), _SUFFIX)
        if path is not None:
            record = json.loads(path.read_bytes())
            return {
                str(kernel): [
                    tuple(Node(name, operator, tuple(Line(*line) for line in lines)) for name, operator, lines in launch)
                    for launch in launches
                ]
                for kernel, launches in record.items()
            }
    return {}
