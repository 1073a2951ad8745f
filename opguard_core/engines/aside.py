"""Backward formulas that torch computes another way while any dispatch mode is active: those run without us.

torch takes an active mode for a tensor subclass and then prefers composite formulas, which for the nodes listed in
``tables.NODES_CHANGED_BY_MODES`` sum in another order. Observing them would change the training's last bits, so our mode
steps aside while such a node runs, and the node as a whole is the boundary: one event with its incoming and outgoing
gradients.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch

from opguard_core.engines.lanes import Lane
from opguard_core.engines.markers import event_here
from opguard_core.engines.rank import RankContext
from opguard_core.engines.tables import NODES_CHANGED_BY_MODES
from opguard_core.ids import Kind, Phase
from opguard_core.trace.schema import SlotRow

UNSEEN_GRADIENTS = "gradients_of_named_calls_in_compiled_backwards"


class Aside:
    """Finds such nodes in a graph about to run and hooks them for the time of that run."""

    def __init__(self, context: RankContext) -> None:
        self._context = context

    def attach(self, lane: Lane, outputs: Any) -> list[Any]:
        """Hook the nodes below ``outputs`` (tensors or gradient edges); returns handles to remove afterwards.

        Cost: nothing until a forward made such a node; then one visit of each node of the graph.
        """
        if runs_as_one_graph():
            self._take_hooks_back()
            return []
        if not self._context.nodes_to_leave_alone:
            return []
        handles: list[Any] = []
        for node in _nodes(outputs):
            if node.name() in NODES_CHANGED_BY_MODES:
                visit = _Visit(self._context, lane, node.name(), node._sequence_nr())
                handles += [node.register_prehook(visit.begins), node.register_hook(visit.ends)]
        return handles

    def _take_hooks_back(self) -> None:
        """No hook of ours may be in a graph that is about to be compiled: what it would have told of is not seen, and counted."""
        hooks = self._context.gradient_hooks
        while hooks:
            hook = hooks.pop()
            if hook.hooks_dict_ref() is not None:  # its graph is still there
                hook.remove()
                self._context.coverage.count(UNSEEN_GRADIENTS)


class _Visit:
    """One node that runs without our mode."""

    def __init__(self, context: RankContext, lane: Lane, name: str, number: int) -> None:
        self._context, self._lane, self._name, self._number = context, lane, name, number
        self._rows: list[SlotRow] = []
        self._entry: Any = None

    def begins(self, incoming: Any) -> None:
        """Pre-hook: look at the incoming gradients and step aside."""
        try:
            self._begins(incoming)
        except Exception as error:  # noqa: BLE001  the step guard
            self._context.guard.caught(self._name, error)

    def _begins(self, incoming: Any) -> None:
        context, lane = self._context, self._lane
        if lane.mode is None or lane.muted or not lane.mode.on_top():
            return
        lane.mode.pop()
        lane.aside = True
        if context.progress.recording:
            self._entry, self._rows = context.outbox.open(), []
            self._look("in", incoming)

    def ends(self, outgoing: Any, incoming: Any) -> None:
        """Post-hook: look at the results and come back."""
        try:
            self._ends(outgoing)
        except Exception as error:  # noqa: BLE001  the step guard
            self._context.guard.caught(self._name, error)

    def _ends(self, outgoing: Any) -> None:
        context, lane = self._context, self._lane
        if not lane.aside or context.dead:
            return
        if self._entry is not None:
            entry, self._entry = self._entry, None
            self._look("out", outgoing, entry)
            event = event_here(
                context, entry.seq, Kind.OPERATOR.value, f"autograd.{self._name}", "", Phase.BACKWARD.value, sys._getframe(1)
            )
            known = lane.forward_of.get(self._number)
            event = event._replace(node=self._name, forward_seq=None if known is None else known[0])
            context.outbox.close(entry, event, self._rows)
        lane.come_back()

    def _look(self, direction: str, gradients: Any, entry: Any = None) -> None:
        context = self._context
        seq = (entry or self._entry).seq
        look = context.probes.input if direction == "in" else context.probes.output
        with torch._C.DisableTorchFunction():
            try:
                for index, tensor in enumerate(gradients):
                    if isinstance(tensor, torch.Tensor):
                        look(self._rows, seq, f"{direction}.{index}", tensor)
            except Exception as error:  # noqa: BLE001  the step guard
                context.guard.caught(self._name, error)


def runs_as_one_graph() -> bool:
    """Whether compiled autograd runs the backward that this thread begins: hooks of ours would be compiled into its graph."""
    return bool(getattr(sys.modules.get("torch._dynamo.compiled_autograd"), "compiled_autograd_enabled", False))


def _nodes(outputs: Any) -> Iterator[Any]:
    """All nodes of a graph, each once."""
    roots = [getattr(output, "node", None) or getattr(output, "grad_fn", None) for output in outputs]
    open_nodes = [node for node in roots if node is not None]
    seen = set(open_nodes)
    while open_nodes:
        node = open_nodes.pop()
        yield node
        for inner, _ in node.next_functions:
            if inner is not None and inner not in seen:
                seen.add(inner)
                open_nodes.append(inner)
