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
from types import ModuleType
from typing import Any

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
_ALLOCATION = "empty_strided_"


class _Here(threading.local):
    """What the calling thread compiles."""

    def __init__(self) -> None:
        self.regions: list[Region] = []
        self.nodes: dict[str, list[tuple[Node, ...]]] = {}


class _Bound:
    """One generated module and what its names were bound to before."""

    def __init__(self, generated: Generated, nodes: Mapping[str, Sequence[tuple[Node, ...]]], launches: Launches, part: Part) -> None:
        self.generated, self.nodes, self.launches, self.part = generated, nodes, launches, part
        self.name = f"inductor/{generated.digest[:16]}.py"
        self.lines = Origins(nodes, {}, (), None)
        self.before: list[tuple[dict[str, Any], dict[str, Any]]] = []  # namespaces, and what their names were


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
        self._bound: dict[str, _Bound] = {}
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
            for names, before in bound.before:
                names.update(before)
            bound.before.clear()
            bound.launches.let_go()

    def region_here(self) -> str:
        """Name of the region that the calling thread compiles, "" for none."""
        region = self._here.regions[-1] if self._here.regions else self._regions.known(_compile_id())
        return "" if region is None else region.name

    def is_generated(self, filename: str) -> str | None:
        """Name that a trace gives to a generated file: by its code, wherever it lies; None for a file that is none."""
        bound = self._bound.get(filename)
        return None if bound is None else bound.name

    def lines(self, filename: str, line: int) -> tuple[tuple[Line, ...], ...]:
        """Stacks of the program that a line of a generated file comes from."""
        bound = self._bound.get(filename)
        if bound is None:
            return ()
        site = bound.generated.launches.get(line)
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
        path, here = module.__file__, self._here
        if path is None or "call" not in module.__dict__:
            return
        region = here.regions[-1] if here.regions else self._regions.known(_compile_id())
        bound = self._bound.get(path)
        if bound is None:
            text = Path(path).read_text("utf-8")
            if "async_compile" not in text and not is_in_cpp(text):
                return
            nodes, here.nodes = here.nodes, {}
            if nodes:
                origins.keep(text, nodes)
            else:
                nodes = origins.kept(text)
            generated = read(text)
            launches = Launches(self._outside, generated, self._context.guard, self._native)
            part = self._regions.loaded(region, generated, launches, text, why_late)
            bound = self._bound[path] = _Bound(generated, nodes, launches, part)
            if generated.others and not why_late:
                self._context.coverage.gap("compiled-region", part.unseen, touches_state=True)
        elif region is not None:
            self._regions.moved(bound.part, region)
        bound.lines = Origins(bound.nodes, bound.generated.source_nodes, stacks, None if region is None else region.traced)
        self._bind(bound, module)

    def _bind(self, bound: _Bound, module: ModuleType) -> None:
        names = module.__dict__
        replaced: dict[str, Any] = {}
        if bound.generated.in_cpp and not isinstance(names["call"], RegionCall):
            replaced["call"] = RegionCall(bound.launches, names["call"], f"cpp_wrapper_{bound.part.part}")
        for kernel in bound.generated.kernels.values():
            value = names.get(kernel.name)
            if value is not None and not bound.launches.is_around(value):
                replaced[kernel.name] = bound.launches.around(kernel, value)
        for name, value in names.items():
            if name.startswith(_ALLOCATION) and callable(value) and not bound.launches.is_around(value):
                replaced[name] = bound.launches.allocation(value, self._unwritten)
        if replaced:
            bound.before.append((names, {name: names[name] for name in replaced}))
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


def _nothing(token: Any, returned: bool) -> None:
    """Nothing to do afterwards."""
