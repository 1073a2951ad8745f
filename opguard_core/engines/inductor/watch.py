"""Stands by while Inductor compiles or loads code, and binds the names of each generated module to what observes its launches.

Level ``kernels``: graph, fusion and generated code stay as they are, and nothing of ours is in Inductor's cache keys or files. Regions
compiled before the capture began are bound as well, and everything is unbound when it ends.

What it cannot see: what a region computes inside one kernel; single launches of a region that is one C++ function (``cpp_wrapper``: its
inputs and outputs are), or that a CUDA graph replays (`replays` says how many did).
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, NamedTuple

import torch

from opguard_core.engines.imports import WhenImported
from opguard_core.engines.inductor import origins
from opguard_core.engines.inductor.generated import Generated, is_in_cpp, read
from opguard_core.engines.inductor.launches import Launches, RegionCall
from opguard_core.engines.inductor.native_launches import NativeLaunches
from opguard_core.engines.inductor.origins import Line, Node, Origins, Traced
from opguard_core.engines.inductor.regions import Part, Region, Regions, digest_of_graph
from opguard_core.engines.outside import OutsideCalls
from opguard_core.engines.quiet import quiet
from opguard_core.engines.rank import RankContext
from opguard_core.engines.shims import Patch, around, own

CODE_CACHE, COMPILER, CPP, GPU = (
    "torch._inductor.codecache",
    "torch._inductor.compile_fx",
    "torch._inductor.codegen.cpp",
    "torch._inductor.codegen.triton",
)
_AOT = "torch._functorch._aot_autograd.logging_utils"
_ALLOCATION = "empty_strided_"


class _Here(threading.local):
    """What the calling thread compiles."""

    def __init__(self) -> None:
        self.regions: list[Region] = []
        self.nodes: dict[str, list[tuple[Node, ...]]] = {}


class _Text(NamedTuple):
    """One generated file: what its text says, the nodes behind its launches if known, and what a trace calls it."""

    generated: Generated
    nodes: Mapping[str, Sequence[tuple[Node, ...]]]
    name: str
    text: str


class _Bound:
    """One generated module as it was loaded for one region, and what its names were bound to before.

    Regions of equal code have one file, but each its own module: where a line comes from depends on the region.
    """

    def __init__(self, names: dict[str, Any], launches: Launches, part: Part, region: Region | None) -> None:
        self.names, self.launches, self.part, self.region = names, launches, part, region  # the names' identity is their address: held
        self.lines: Origins | None = None
        self.before: list[dict[str, Any]] = []


class Watch:
    """Level ``kernels`` of one rank.

    Args:
        context: The rank's shared bookkeeping.
        outside: Where launches become events.
        regions: Gathers what is compiled.
        native: What observes launches in C++, if the native engine observes this rank.
    """

    def __init__(self, context: RankContext, outside: OutsideCalls, regions: Regions, native: NativeLaunches | None = None) -> None:
        self._context, self._outside, self._regions, self._native = context, outside, regions, native
        self._here = _Here()
        self._patches: list[Patch] = []
        self._imports: list[WhenImported] = []
        self._texts: dict[str, _Text] = {}
        self._bound: dict[int, _Bound] = {}  # by the identity of a module's names
        self._stopped = False

    def start(self) -> None:
        """Stand by from now on; what is loaded already is bound."""
        for name, then in ((CODE_CACHE, self._code_cache), (COMPILER, self._compiler), (CPP, self._scheduling), (GPU, self._scheduling)):
            one = WhenImported(name, functools.partial(self._guarded, then))
            self._imports.append(one)
            one.watch()

    def stop(self) -> None:
        """Bind every name to what it was."""
        self._stopped = True
        for one in self._imports:
            one.stop()
        for patch in reversed(self._patches):
            patch.undo()
        self._patches.clear()
        for bound in self._bound.values():
            for before in reversed(bound.before):
                bound.names.update(before)
            bound.before.clear()
            bound.launches.let_go()
        self._bound.clear()  # each kept its module's namespace

    def region_here(self) -> str:
        """Name of the region that the calling thread compiles, "" for none."""
        region = self._region_here()
        return "" if region is None else region.name

    def _region_here(self) -> Region | None:
        aot_id = _aot_id()
        if not self._here.regions:
            return self._regions.known(_compile_id(), aot_id)
        self._regions.under_way(self._here.regions[-1], aot_id)
        return self._here.regions[-1]

    def is_generated(self, filename: str) -> str | None:
        """Name that a trace gives to a generated file: by its code, wherever it lies; None for a file that is none."""
        known = self._texts.get(filename)
        return None if known is None else known.name

    def lines(self, frame: FrameType) -> tuple[tuple[Line, ...], ...]:
        """Stacks of the program that the running line of a frame comes from; none for a frame of other code.

        Args:
            frame: Not kept.
        """
        known = self._texts.get(frame.f_code.co_filename)
        bound = None if known is None else self._bound.get(id(frame.f_globals))
        if known is None or bound is None or bound.lines is None:
            return ()
        line = frame.f_lineno
        site = known.generated.launches.get(line)
        return bound.lines.at(line, None if site is None else (site.kernel, site.occurrence))

    # Standing by.

    def _guarded(self, callback: Callable[..., Any], *args: Any) -> Any:
        if self._context.dead or self._stopped:
            return None
        try:
            return callback(*args)
        except Exception as error:  # noqa: BLE001  the step guard
            self._context.guard.caught(f"compiled code: {callback.__name__}", error)
            return None

    def _code_cache(self, module: Any) -> None:
        cache = module.PyCodeCache
        self._patches.append(Patch(cache, "load_by_key_path", self._around_load))
        for loaded in [*cache.modules, *cache.modules_no_attr.values()]:
            self._guarded(self._met, loaded, (), "before the capture")

    def _around_load(self, original: Any) -> Any:
        load = getattr(original, "__func__", original)

        def load_by_key_path(cls: Any, key: str, path: str, *args: Any, **kwargs: Any) -> Any:
            module = load(cls, key, path, *args, **kwargs)
            stacks = kwargs.get("linemap") or (args[0] if args else None) or ()
            self._guarded(self._met, module, stacks, "")
            return module

        return classmethod(own(load_by_key_path))

    def _compiler(self, module: Any) -> None:
        self._patches.append(Patch(module, "compile_fx", functools.partial(around, enter=self._compile_begins, leave=self._compile_ends)))

    def _compile_begins(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        graph = getattr(args[0] if args else kwargs.get("model_"), "graph", None)
        region = None
        if isinstance(graph, torch.fx.Graph) and not self._here.regions:  # it calls itself once its settings are in place
            region = self._guarded(self._region, graph)
        if region is not None:
            self._here.regions.append(region)
        return region

    def _region(self, graph: torch.fx.Graph) -> Region:
        return self._regions.begin(Traced(graph), digest_of_graph(graph), _compile_id())

    def _compile_ends(self, token: Any, returned: bool) -> None:
        if token is not None and self._here.regions and self._here.regions[-1] is token:
            self._here.regions.pop()

    def _scheduling(self, module: Any) -> None:
        for value in list(vars(module).values()):
            if isinstance(value, type) and value.__module__ == module.__name__ and "codegen_comment" in vars(value):
                self._patches.append(Patch(value, "codegen_comment", functools.partial(around, enter=self._kernel_made, leave=_nothing)))

    def _kernel_made(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        kernel = kwargs.get("kernel_name") or (args[2] if len(args) > 2 else None)
        if isinstance(kernel, str) and len(args) > 1:
            nodes = self._guarded(origins.nodes_of, args[1])
            self._here.nodes.setdefault(kernel, []).append(nodes or ())

    # Modules.

    def _met(self, module: ModuleType, stacks: Any, why_late: str) -> None:
        """A module was loaded; one that was known already may be for another region now."""
        path, names = module.__file__, module.__dict__
        if path is None or "call" not in names:
            return
        region = self._region_here()
        fresh, self._here.nodes = self._here.nodes, {}  # of this module or of none: code from a cache was generated some other time
        known = self._texts.get(path) or self._read(path, fresh)
        if known is None:
            return
        nodes = fresh or known.nodes
        bound = self._bound.get(id(names))
        if bound is None:
            bound = self._bound[id(names)] = self._new(names, known, region, why_late)
            bound.lines = Origins(nodes, known.generated.source_nodes, stacks, None if region is None else region.traced)
        elif region is not None and region is not bound.region:
            # Whose line a launch is cannot be said of a module that two regions call; where the program calls them is known anyway.
            alone = bound.region is None
            bound.lines = Origins(nodes, known.generated.source_nodes, stacks, region.traced) if alone else None
            self._regions.moved(bound.part, region)
            bound.region = region
        self._bind(bound, known.generated)

    def _read(self, path: str, nodes: Mapping[str, Sequence[tuple[Node, ...]]]) -> _Text | None:
        """What a generated file says, once; None if it is no module of kernels."""
        text = Path(path).read_text("utf-8")
        if "async_compile" not in text and not is_in_cpp(text):
            return None
        if nodes:
            origins.keep(text, nodes)
        else:
            nodes = origins.kept(text)
        generated = read(text)
        known = self._texts[path] = _Text(generated, nodes, f"inductor/{generated.digest[:16]}.py", text)
        return known

    def _new(self, names: dict[str, Any], known: _Text, region: Region | None, why_late: str) -> _Bound:
        """A module that was not met before; loaded twice for one region it still is one part of it."""
        for other in self._bound.values():
            if region is not None and other.region is region and other.part.code == known.generated.digest:
                return _Bound(names, other.launches, other.part, region)
        launches = Launches(self._outside, known.generated, self._context.guard, self._native)
        part = self._regions.loaded(region, known.generated, launches, known.text, why_late)
        if known.generated.others and not why_late:
            self._context.coverage.gap("compiled-region", part.unseen, touches_state=True)
        return _Bound(names, launches, part, region)

    def _bind(self, bound: _Bound, generated: Generated) -> None:
        names = bound.names
        replaced: dict[str, Any] = {}
        if generated.in_cpp and not isinstance(names["call"], RegionCall):
            replaced["call"] = RegionCall(bound.launches, names["call"], f"cpp_wrapper_{bound.part.part}")
        for kernel in generated.kernels.values():
            value = names.get(kernel.name)
            if value is not None and not bound.launches.is_around(value):
                replaced[kernel.name] = bound.launches.around(kernel, value)
        for name, value in names.items():
            if name.startswith(_ALLOCATION) and callable(value) and not bound.launches.is_around(value):
                replaced[name] = bound.launches.allocation(value, self._unwritten)
        if replaced:
            bound.before.append({name: names[name] for name in replaced})
            names.update(replaced)

    def _unwritten(self, tensor: torch.Tensor) -> None:
        if self._outside.watches():
            self._guarded(self._never_written, tensor)

    def _never_written(self, tensor: torch.Tensor) -> None:
        with quiet():
            self._context.storages.of(tensor, self._context.outbox.next_seq).never_written()


def _compile_id() -> str:
    """What Dynamo calls the compilation that this thread is in, "" outside of any."""
    guards: Any = sys.modules.get("torch._guards")
    found = None if guards is None else guards.CompileContext.current_compile_id()
    return "" if found is None else str(found)


def _aot_id() -> str:
    """Number that AOTAutograd gave to what it compiles right now, forward or backward; "" while it compiles nothing."""
    log: Any = sys.modules.get(_AOT)
    working = getattr(log, "graph_being_compiled", None)
    return str(working[0]).partition("_")[0] if working else ""


def _nothing(token: Any, returned: bool) -> None:
    """Nothing to do afterwards."""
