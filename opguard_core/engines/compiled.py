"""Compiled regions: how they are observed, decided once a run, and why not otherwise.

- ``kernels``: compiled stays compiled; each generated kernel is a boundary at its launch, and each library call of the generated code where
  it reaches the dispatcher (`inductor.watch`).
- ``probes``: as ``kernels``, with probe nodes in the graphs on values that are in memory anyway (`inductor.probe_pass`): not the user's
  exact artefact any more, and said so.
- ``eager``: each operator is a boundary, since the region runs eagerly. Its bits may differ from those of the compiled one, on both sides
  alike.

**Why a dispatch mode turns compiled code eager, and how not to.** Dynamo leaves a frame alone while a mode is on the thread's stack that
does not say ``ignore_compile_internals`` (torch 2.9 and newer know it); a mode that says so is off while code is compiled and on while it
runs. A torch without it needs the native engine, which is no mode. The native engine's key is one that Dynamo's guards look at: they are
made with it as they are checked with it, or every call would compile anew.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from opguard_core.engines.imports import WhenImported
from opguard_core.engines.inductor.native_launches import NativeLaunches
from opguard_core.engines.inductor.probe_pass import ProbePass
from opguard_core.engines.inductor.regions import Regions
from opguard_core.engines.inductor.replays import UNSEEN, Replays
from opguard_core.engines.inductor.watch import Watch
from opguard_core.engines.mode import BoundaryMode
from opguard_core.engines.outside import OutsideCalls
from opguard_core.engines.places import Places
from opguard_core.engines.rank import RankContext
from opguard_core.engines.shims import Patch, around
from opguard_core.ids import SENTINEL
from opguard_core.plan.config import AUTO, COMPILED_EAGER, KERNELS, NATIVE, PROBES

_DYNAMO = "torch._dynamo"
_COMPILER, _GUARDS, _MODULES = "torch._dynamo.eval_frame", "torch._dynamo.guards", "torch._dynamo.variables.nn_module"
_IGNORE = "ignore_compile_internals"
_ALTERED = "graphs hold probe nodes: the generated code is not the one that the program runs without them"


def choose_level(wanted: str, mode: str, engine: str) -> tuple[str, str]:
    """The level of a run and why it is this one.

    Args:
        wanted: One of ``plan.config.COMPILED``.
        mode: One of ``ids.MODES``.
        engine: Name of the engine that observes operators.
    """
    if mode == SENTINEL:
        return KERNELS, "mode sentinel looks at no operator, so nothing of a region is observed"
    if wanted == COMPILED_EAGER:
        return COMPILED_EAGER, "asked for"
    if engine != NATIVE and not hasattr(TorchDispatchMode, _IGNORE):
        why = f"torch {torch.__version__} runs compiled code eagerly under a dispatch mode, and the native engine does not observe this run"
        return COMPILED_EAGER, why
    return (KERNELS, "compiled code stays compiled under this engine") if wanted == AUTO else (wanted, "asked for")


class CompiledRegions:
    """Keeps regions as the level says; its ``enter`` and ``leave`` go around ``torch.compile`` itself.

    Args:
        context: The rank's shared bookkeeping.
        outside: Where launches of generated kernels become events.
        level: One of ``plan.config.COMPILED`` without ``auto``.
        why: Why this one.
        native: The compiled observer, if it observes operators.
    """

    def __init__(self, context: RankContext, outside: OutsideCalls, level: str, why: str, native: Any = None) -> None:
        self._context, self._coverage = context, context.coverage
        self.level, self._why, self._native = level, why, native
        self.regions = Regions()
        self._watch = Watch(context, outside, self.regions, None if native is None else _launches_of(context, native))
        self._prior: Any = None
        self._num_declared = 0
        self._graphs_before: int | None = None  # where operators are looked at
        self._patches: list[Patch] = []
        self._imports: list[WhenImported] = []
        self._calls: Any = None
        self._stands_by = False
        self._probes: ProbePass | None = None
        self._replays = Replays(outside, context.guard)

    def start(self) -> None:
        """Before the first operator."""
        self._graphs_before = _compiled_graphs()
        if self.level == COMPILED_EAGER:
            return
        BoundaryMode.ignore_compile_internals = classmethod(_yes)
        self._calls = torch.nn.Module.__call__
        if _DYNAMO in sys.modules:
            self._stand_by()

    def _stand_by(self) -> None:
        """The compiler is there, or is about to be loaded: a program that compiles nothing has none of this."""
        if self._stands_by:
            return
        self._stands_by = True
        self._when(_MODULES, self._ours_is_theirs)
        if self._native is not None:
            self._when(_GUARDS, self._guards)
        if isinstance(self._context.places, Places):
            self._context.places.generated = self._watch
        if self.level == PROBES:
            self._probes = ProbePass(self._watch.region_here)
            self._probes.start()
        self._watch.start()
        self._replays.start()

    def _when(self, name: str, then: Any) -> None:
        one = WhenImported(name, then)
        self._imports.append(one)
        one.watch()

    def _ours_is_theirs(self, module: Any) -> None:
        """Dynamo goes straight to a module's ``forward`` if the module's call is what it knows; ours is the same call, observed."""
        if getattr(module, "unpatched_nn_module_call", None) is not None:
            self._patches.append(Patch(module, "unpatched_nn_module_call", lambda original: self._calls))

    def _guards(self, module: Any) -> None:
        if hasattr(module, "CheckFunctionManager"):
            made = functools.partial(around, enter=self._guards_begin, leave=self._guards_end)
            self._patches.append(Patch(module.CheckFunctionManager, "__init__", made))

    def _guards_begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Guards compare dispatch keys with those of the thread that made them: ours is on it when they are checked."""
        lane = self._context.lanes.current()
        if lane is None or lane.away or self._context.dead:
            return None
        was = bool(self._native.is_included()), lane.muted
        lane.muted = True
        self._native.set_included(True)
        return lane, was

    def _guards_end(self, token: Any, returned: bool) -> None:
        if token is not None:
            lane, (included, muted) = token
            self._native.set_included(included)
            lane.muted = muted

    def enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """``torch.compile`` is called; it imports the compiler, which we do not do for it."""
        if kwargs.get("disable"):
            return False
        if self.level != COMPILED_EAGER:
            self._stand_by()
        return True

    def leave(self, token: Any, returned: bool) -> None:
        """A region was declared, none has run."""
        if not token:
            return
        self._num_declared += 1
        if self.level != COMPILED_EAGER:
            return
        self._coverage.count("compiled_regions_run_eagerly")
        compiler: Any = sys.modules.get(_COMPILER)
        if compiler is not None and self._prior is None and compiler._stance.stance == "default":
            self._prior = compiler._stance
            compiler._stance = type(self._prior)("force_eager")

    def stop(self) -> None:
        """Give everything back; the stance unless the program has set one of its own since."""
        compiler: Any = sys.modules.get(_COMPILER)
        if compiler is not None and self._prior is not None and compiler._stance.stance == "force_eager":
            compiler._stance = self._prior
        self._prior = None
        # Asked to leave regions eager, it compiled some; or somebody called it by other ways than ``torch.compile``.
        before, self._graphs_before = self._graphs_before, None
        if before is not None and not self._stands_by and (num_graphs := _compiled_graphs() - before):
            self._coverage.gap("compiled-region", f"{num_graphs} compiled graphs ran unobserved", touches_state=True, seq=0)
        for one in self._imports:
            one.stop()
        for patch in reversed(self._patches):
            patch.undo()
        self._patches.clear()
        if "ignore_compile_internals" in vars(BoundaryMode):
            del BoundaryMode.ignore_compile_internals
        if self._probes is not None:
            self._probes.stop()
        self._watch.stop()
        self._replays.stop()
        module: Any = sys.modules.get(_MODULES)
        if module is not None and self._calls is not None and getattr(module, "unpatched_nn_module_call", None) is self._calls:
            module.unpatched_nn_module_call = torch.nn.Module.__call__  # imported while ours was in place

    def facts(self) -> dict[str, Any]:
        """For the contract: nothing if no region was met."""
        regions = self.regions.facts()
        if not regions and not self._num_declared:
            return {}
        return {"compile.level": self.level, **({"compile.code": regions} if regions else {})}

    def report(self) -> dict[str, Any]:
        """What goes into the rank manifest's ``engines.compiled``; nothing if no region was met."""
        regions = self.regions.report()
        if not regions and not self._num_declared:
            return {}
        launches: dict[str, Any] = {"launches": self.regions.num_launches, "regions": regions} if self.level != COMPILED_EAGER else {}
        if num_untold := self.regions.num_untold:
            launches["regions_not_listed"] = num_untold
        if replays := self._replays.num_replays:
            launches["graphs"] = {"replays": replays, "unseen": UNSEEN}
        probes = {"probes": self.regions.num_probes, "artefact": _ALTERED} if self._probes is not None else {}
        return {"active": self.level != COMPILED_EAGER, "level": self.level, "why": self._why, **probes, **launches}


def _launches_of(context: Any, module: Any) -> NativeLaunches:
    """What observes launches in C++, for the engine that observes operators there."""

    def wants(operator: str) -> bool:
        return context.closeup is not None and bool(context.closeup.wants(operator))

    return NativeLaunches(module, context.observer, wants)


def _compiled_graphs() -> int:
    """Graphs that the compiler has made in this process."""
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
    return int(counters["stats"]["unique_graphs"]) if "stats" in counters else 0


def _yes(cls: Any) -> bool:
    return True
