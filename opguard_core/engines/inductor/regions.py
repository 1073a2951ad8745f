"""What was compiled: each region with the digest of its graph and of the code generated from it, for the manifest and the contract.

Two sides that compiled to different code compute different bits without any operator of theirs being at fault; equal code is equal
wherever it lies and whenever it was compiled.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from typing import Any

import torch

from opguard_core.engines.canonical import canonical
from opguard_core.engines.inductor.generated import Generated
from opguard_core.engines.inductor.launches import Launches
from opguard_core.engines.inductor.origins import Traced, inner_graph
from opguard_core.engines.inductor.probe_pass import CALL as PROBE_CALL

MAX_TOLD = 64
SHOWN = 16  # hexadecimal digits of a digest in the manifest
_PART = re.compile(r"# AOT ID: \['\w*?_?(forward|backward|inference)'\]")


@dataclass
class Part:
    """One generated module of a region.

    Attributes:
        part: "forward", "backward" or "inference".
        code: Digest of the generated code.
        kernels: Digest of each kernel's text, by name.
        launches: Counts what was seen.
        probes: Probe nodes in it.
        unseen: What of it cannot be seen, and why; empty for nothing.
    """

    part: str
    code: str
    kernels: dict[str, str]
    launches: Launches
    probes: int = 0
    unseen: str = ""


@dataclass
class Region:
    """One compilation of one piece of the program.

    Attributes:
        name: The function that it begins in, and which compilation of it this is.
        place: File and line where it begins.
        graph: Digest of the graph that the program was traced to.
        traced: Where its nodes come from.
        parts: What was generated.
    """

    name: str
    place: str
    graph: str
    traced: Traced | None
    parts: list[Part] = field(default_factory=list)


class Regions:
    """All regions that one rank has compiled or loaded while it was observed.

    What Dynamo compiles at once may be several regions (``DDPOptimizer`` splits a graph where a bucket of gradients is full), so its
    number of a compilation does not say which one is meant: AOTAutograd's does.
    """

    def __init__(self) -> None:
        self._all: list[Region] = []
        self._by_id: dict[str, list[Region]] = {}
        self._by_aot: dict[str, Region] = {}
        self._counts: dict[str, int] = {}

    def begin(self, traced: Traced, graph: str, compile_id: str) -> Region:
        """A graph is given to the compiler."""
        first = traced.first
        region = self._new("graph" if first is None else first.function, "" if first is None else f"{first.file}:{first.line}")
        region.graph, region.traced = graph, traced
        if compile_id:
            self._by_id.setdefault(compile_id, []).append(region)
        return region

    def _new(self, function: str, place: str = "") -> Region:
        number = self._counts[function] = self._counts.get(function, -1) + 1
        region = Region(f"{function}#{number}", place, "", None)
        self._all.append(region)
        return region

    def under_way(self, region: Region, aot_id: str) -> None:
        """AOTAutograd works on a region under this number."""
        if aot_id:
            self._by_aot[aot_id] = region

    def known(self, compile_id: str, aot_id: str) -> Region | None:
        """The region of a compilation that goes on later: a backward that is compiled when it first runs. None: not known for sure."""
        found = self._by_aot.get(aot_id)
        if found is not None:
            return found
        alike = self._by_id.get(compile_id, ())
        return alike[0] if len(alike) == 1 else None

    def loaded(self, region: Region | None, generated: Generated, launches: Launches, text: str, why_late: str) -> Part:
        """Code was generated for a region, or taken from a cache."""
        if region is None:
            region = self._new(why_late or "unknown")
        unseen = f"kernels bound by async_compile.{', '.join(generated.others)}" if generated.others else ""
        if generated.in_cpp:
            unseen = "one C++ function (cpp_wrapper): its inputs and outputs are seen, no single kernel"
        digests = {kernel.name: kernel.digest[:SHOWN] for kernel in generated.kernels.values()}
        part = Part(self.part_of_text(text), generated.digest, digests, launches, text.count(PROBE_CALL), unseen)
        region.parts.append(part)
        return part

    def moved(self, part: Part, to: Region) -> None:
        """A module that was loaded before is for this region now, too."""
        if all(one is not part for one in to.parts):
            to.parts.append(part)
        self._all = [one for one in self._all if one.traced is not None or all(old is not part for old in one.parts)]

    def _told(self) -> list[Region]:
        """Regions that were compiled or ran here; what was compiled before the capture and never ran in it is not this run's."""
        return [one for one in self._all if one.traced is not None or any(part.launches.num_seen for part in one.parts)]

    @staticmethod
    def part_of_text(text: str) -> str:
        """Which part of a training step a generated module is for."""
        found = _PART.search(text)
        return found.group(1) if found else "region"

    @property
    def num_probes(self) -> int:
        """Probe nodes in what was compiled."""
        return sum({id(part): part.probes for region in self._all for part in region.parts}.values())

    @property
    def num_launches(self) -> int:
        """Launches seen."""
        seen = {id(part): part.launches.num_seen for region in self._all for part in region.parts}
        return sum(seen.values())

    @property
    def num_untold(self) -> int:
        """Regions of which the manifest has no entry of their own."""
        return max(len(self._told()) - MAX_TOLD, 0)

    def facts(self) -> dict[str, Any]:
        """For the contract: graph and code of each region; a region that was compiled before the capture has no graph."""
        told = {region.name: {"graph": region.graph[:SHOWN], "code": _codes(region)} for region in self._told()}
        rest = dict(list(told.items())[MAX_TOLD:])
        if rest:  # those without an entry of their own are compared, too
            told = {name: one for name, one in told.items() if name not in rest}
            told[f"and {len(rest)} more"] = {"code": {"all": hashlib.sha256(repr(rest).encode()).hexdigest()[:SHOWN]}}
        return told

    def report(self) -> list[dict[str, Any]]:
        """For the manifest."""
        return [
            {
                "region": region.name,
                "place": region.place,
                "graph": region.graph[:SHOWN],
                "parts": [
                    {
                        "part": part.part,
                        "code": part.code[:SHOWN],
                        "kernels": part.kernels,
                        "launches": part.launches.num_seen,
                        "unseen": part.unseen,
                    }
                    for part in region.parts
                ],
            }
            for region in self._told()[:MAX_TOLD]
        ]


def _codes(region: Region) -> dict[str, str]:
    """Digest of each generated module of a region by its part; a second one of the same part has a name of its own."""
    found: dict[str, str] = {}
    for part in region.parts:
        alike = sum(one.partition("#")[0] == part.part for one in found)
        found[f"{part.part}#{alike}" if alike else part.part] = part.code[:SHOWN]
    return found


def digest_of_graph(graph: torch.fx.Graph) -> str:
    """sha256 of a graph's operators, arguments and results and of the graphs inside, without names of nodes, lines or any address."""
    numbers = {node: index for index, node in enumerate(graph.nodes)}

    def text(value: Any) -> str:
        if isinstance(value, torch.fx.Node):
            return f"%{numbers.get(value, -1)}"
        if isinstance(value, (list, tuple)):
            return f"({','.join(map(text, value))})"
        if isinstance(value, dict):
            return f"{{{','.join(f'{key}:{text(one)}' for key, one in value.items())}}}"
        if isinstance(value, slice):
            return f"[{text(value.start)}:{text(value.stop)}:{text(value.step)}]"
        return str(value) if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)) else canonical(value)

    whole = hashlib.sha256()
    for node in graph.nodes:
        target = node.target if isinstance(node.target, str) else getattr(node.target, "__qualname__", None) or str(node.target)
        if node.op == "placeholder":
            target = _shape(node)
        elif (inner := inner_graph(node)) is not None:
            target = digest_of_graph(inner)
        whole.update(f"{node.op} {target} {text(node.args)} {text(node.kwargs)}\n".encode())
    return whole.hexdigest()


def _shape(node: Any) -> str:
    value = node.meta.get("example_value", node.meta.get("val"))
    if isinstance(value, torch.Tensor):
        return f"{value.dtype}{[str(size) for size in value.shape]}{value.device.type}"
    return type(value).__name__
