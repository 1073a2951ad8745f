"""Level ``probes``: nodes in Inductor's graphs that tell of values which are in memory anyway.

Placed after all of torch's own passes on what library kernels read and return and on what a graph returns. A probe gives nothing, so no
value depends on it; still the generated code is not the user's exact artefact any more: a probed value is not fused away, and Inductor's
cache keeps this code apart from the user's (`ProbePass.uuid`). Each probe is a named value (`semantic`): ``<region>/<node>``, in a
backward graph ``<region>/backward/<node>``.

For what level ``kernels`` cannot tell: values by the names of the graph's nodes, and regions that run as one C++ function.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from opguard_core.engines import semantic_op
from opguard_core.engines.imports import WhenImported

_CONFIG, _SETTING = "torch._inductor.config", "post_grad_custom_post_pass"
CALL = "opguard.boundary"  # how a probe shows in generated code
_TANGENT = "tangents_"  # inputs of a backward graph are called so
# Library kernels of most programs; whatever Inductor has no lowering for is one, too. Source: torch/_inductor/kernel, lowering.py.
_LIBRARY = frozenset("mm addmm bmm baddbmm convolution convolution_backward _scaled_mm _int_mm".split())


class ProbePass:
    """A pass over post-grad graphs, put after one that the program may have.

    Args:
        region: Name of the region that the calling thread compiles.
    """

    def __init__(self, region: Callable[[], str]) -> None:
        self._region = region
        self._config: Any = None
        self._theirs: Any = None
        self._set: Any = None
        self._waiting = WhenImported(_CONFIG, self._configure)
        self.num_probes = 0

    def start(self) -> None:
        """Be called from now on."""
        self._waiting.watch()

    def _configure(self, config: Any) -> None:
        from torch._inductor.custom_graph_pass import CustomGraphPass

        ours = self

        class Pass(CustomGraphPass):
            def __call__(self, graph: torch.fx.Graph) -> None:
                if ours._theirs is not None:
                    ours._theirs(graph)
                ours.place(graph)

            def uuid(self) -> Any:
                return ours.uuid()

        self._config, self._theirs, self._set = config, getattr(config, _SETTING), Pass()
        setattr(config, _SETTING, self._set)

    def stop(self) -> None:
        """Be called no more, unless the program has put something else there since."""
        self._waiting.stop()
        if self._config is not None and getattr(self._config, _SETTING) is self._set:
            setattr(self._config, _SETTING, self._theirs)
        self._config = None

    def uuid(self) -> Any:
        """Part of Inductor's cache key: this file, the region whose name the probes carry, and the program's own pass."""
        theirs = self._theirs.uuid() if hasattr(self._theirs, "uuid") else None
        if self._theirs is not None and theirs is None:
            return None
        return hashlib.sha256(Path(__file__).read_bytes()).hexdigest(), self._region(), theirs

    def place(self, graph: torch.fx.Graph) -> None:
        """Put a probe behind every value of a graph that is in memory anyway."""
        backward = any(node.op == "placeholder" and node.name.startswith(_TANGENT) for node in graph.nodes)
        prefix = f"{_identifier(self._region() or 'region')}/{'backward/' if backward else ''}"
        values = dict.fromkeys(_in_memory(graph))
        for node in [one for one in graph.nodes if one in values]:
            with graph.inserting_after(node):
                probe = graph.call_function(torch.ops.opguard.boundary.default, (node, f"{prefix}{node.name}", "probe", "in.0"))
            probe.meta.update({"val": None, "stack_trace": node.meta.get("stack_trace")})
            self.num_probes += 1


def _in_memory(graph: torch.fx.Graph) -> Iterator[torch.fx.Node]:
    for node in graph.nodes:
        if node.op == "output":
            yield from filter(None, map(_value, node.all_input_nodes))
        elif _is_library(node):
            yield from filter(None, map(_value, node.all_input_nodes))
            if (made := _value(node)) is not None:
                yield made


def _is_library(node: torch.fx.Node) -> bool:
    """Whether a node is a call of a library kernel, whose operands and result are buffers."""
    operator = node.target
    if node.op != "call_function" or not isinstance(operator, torch._ops.OpOverload) or operator.namespace == "opguard":
        return False
    if operator.namespace == "aten" and operator._opname in _LIBRARY:
        return True
    from torch._inductor.lowering import fallbacks, lowerings

    return operator in fallbacks or operator not in lowerings


def _value(node: torch.fx.Node) -> torch.fx.Node | None:
    """The node that made the memory of a value; None for inputs, which are the program's own, and for what is no tensor."""
    while isinstance(node.target, torch._ops.OpOverload) and node.target.is_view and node.all_input_nodes:
        node = node.all_input_nodes[0]
    return node if node.op == "call_function" and isinstance(node.meta.get("val"), torch.Tensor) else None


def _identifier(name: str) -> str:
    """A region's name as ``marks.NAME`` allows it."""
    return "".join(letter if letter.isalnum() or letter in "_.#-" else "_" for letter in name)[:60] or "region"


assert semantic_op.OPERATOR == CALL.replace(".", "::")
