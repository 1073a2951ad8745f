"""Regions that run as CUDA graphs (``mode="reduce-overhead"``): each replay is one boundary, with what it reads, writes and returns.

A region runs as it is first, and is captured then: in both runs each kernel is a boundary, digests of the captured one coming from the
graph's first replay. Later replays call no Python, so a difference that first shows in one is placed at the graph; run that step without
graphs (``options={"triton.cudagraphs": False}``) to see inside.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

from opguard_core.engines.guard import Guard
from opguard_core.engines.imports import WhenImported
from opguard_core.engines.outside import OutsideCalls
from opguard_core.engines.shims import Patch, around, own, without_own_frames

TREES = "torch._inductor.cudagraph_trees"
OPERATOR = "inductor.cuda_graph"
UNSEEN = "kernels inside are seen where the region runs before it is a graph, not in its replays"


class Replays:
    """Observes replays of Inductor's CUDA graphs.

    Args:
        outside: Where they become events.
        guard: Counts what goes wrong with us.
    """

    def __init__(self, outside: OutsideCalls, guard: Guard) -> None:
        self._outside, self._guard = outside, guard
        self._patches: list[Patch] = []
        self._waiting = WhenImported(TREES, self._met)
        self.num_replays = 0

    def start(self) -> None:
        """Stand by from now on."""
        self._waiting.watch()

    def stop(self) -> None:
        """Give everything back."""
        self._waiting.stop()
        for patch in self._patches:
            patch.undo()
        self._patches.clear()

    def _met(self, module: Any) -> None:
        for name, wrap in (("CUDAGraphNode", self._around_replay), ("CUDAWarmupNode", self._around_warmup)):
            if hasattr(getattr(module, name, None), "run"):
                self._patches.append(Patch(getattr(module, name), "run", wrap))

    def _around_warmup(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """It asks tensors for their addresses to know them again, not to write there."""
        know = self._outside.know_addresses
        return around(original, lambda args, kwargs: know(1), lambda token, returned: know(-1))

    def _around_replay(self, original: Callable[..., Any]) -> Callable[..., Any]:
        outside, begin = self._outside, self._begin

        @functools.wraps(original)
        def run(node: Any, new_inputs: Any) -> Any:
            opened, written = begin(node, new_inputs)
            outside.know_addresses(1)
            try:
                returned = original(node, new_inputs)
            except BaseException as error:
                error.__traceback__ = without_own_frames(error.__traceback__)
                outside.raised(opened, error)
                raise
            finally:
                outside.know_addresses(-1)
            outside.after(
                opened, [(f"out.{index}", one) for index, one in enumerate(returned or ()) if isinstance(one, torch.Tensor)], written
            )
            return returned

        return own(run)

    def _begin(self, node: Any, inputs: Any) -> tuple[Any, list[tuple[str, torch.Tensor]]]:
        """What a replay reads and says that it writes."""
        if not self._outside.watches():
            return None, []
        try:
            tensors = [(index, one) for index, one in enumerate(inputs) if isinstance(one, torch.Tensor)]
            mutated = set(getattr(node.wrapped_function, "mutated_input_idxs", ()))
            self.num_replays += 1
            opened = self._outside.before(OPERATOR, [(f"in.{index}", one) for index, one in tensors], "", sys._getframe(2))
            return opened, [(f"mut.{index}", one) for index, one in tensors if index in mutated]
        except Exception as error:  # noqa: BLE001  the step guard
            self._guard.caught("replay of a CUDA graph", error)
            return None, []
