"""The import hook: modules that are imported from now on run rewritten code; their files, loaders and caches stay as they are.

The finder finds nothing itself. It lets the finders behind it find, and puts an ``exec_module`` of its own on the loader they made,
which the import system calls in place of the class's and which takes itself off again. So a module's loader, spec, file and cached
file are what they would be, ``inspect`` reads the same source, reloading works, and loaders that make code themselves (pytest's
assertion rewriting, zip files) are left alone.

What it cannot see: modules that were there before, the main script, and modules that a program loads by their path.
"""

from __future__ import annotations

import _thread
import contextlib
import importlib
import importlib.util
import sys
import threading
import time
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import CodeType, FunctionType, ModuleType
from typing import Any

from opguard_core.instrument import runtime
from opguard_core.instrument.cache import Cache, key_of
from opguard_core.instrument.dispositions import REWRITTEN, Disposition, Dispositions, why_loader, why_never
from opguard_core.instrument.rewrite import rewrite

_bootstrap: Any = importlib._bootstrap
# Frames of this name are what the import system takes off tracebacks and what ``warnings`` skips.
_MACHINERY = "<frozen importlib._bootstrap_external>"
_MOST_BYTES = 8 << 20
QUIET_S = 5.0  # rewriting that takes longer says so, and again whenever it has doubled


current: Hook | None = None  # the one that was installed before torch was imported, if any


class Hook:
    """Stands on ``sys.meta_path`` while calls of modules are to be rewritten.

    Args:
        everything: Rewrite every call, also in the standard library and common packages.
        cache: Where rewritten modules are kept.
    """

    def __init__(self, *, everything: bool = False, cache: Cache | None = None) -> None:
        self._everything = everything
        self._cache = Cache() if cache is None else cache
        self.dispositions = Dispositions(sys.modules, everything=self._everything)
        self.main_modules: frozenset[str] = frozenset()  # what ``python -m`` will run, see `main`
        self.main_spec: ModuleSpec | None = None
        self._active = False
        self._asking = threading.local()
        self._num_made = self._num_sites = 0
        self._seconds, self._says_at = 0.0, QUIET_S

    def install(self) -> None:
        """Rewrite what is imported from now on; once more is no harm."""
        self._active = True
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def remove(self) -> None:
        """Rewrite nothing more; what was rewritten stays so, and is not observed."""
        self._active = False
        # Another thread may stand in the middle of the list; taking an entry out would make it skip a finder.
        if _thread._count() == 0 and self in sys.meta_path:
            sys.meta_path.remove(self)

    def report(self) -> dict[str, Any]:
        """For the manifest."""
        cache = {"found": self._cache.num_found, "made": self._cache.num_made, "damaged": self._cache.num_damaged}
        if self._cache.why_not:
            cache["why_not"] = self._cache.why_not  # type: ignore[assignment]
        return {**self.dispositions.report(), "cache": cache}

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Let the finders behind this one find a module, and prepare its loader."""
        if name == "__main__" and self.main_spec is not None:
            return self.main_spec
        if not self._active or why_never(name, everything=self._everything):
            return None
        asking: set[str] = self._asking.__dict__.setdefault("names", set())
        if name in asking:  # a finder behind us asks the whole path again
            return None
        asking.add(name)
        try:
            spec = self._ask_behind(name, path, target)
        finally:
            asking.discard(name)
        if spec is not None and not why_loader(spec.loader):
            self._prepare(spec)
            if name in self.main_modules:
                self._prepare_main(name, spec.loader)
        return spec

    def _ask_behind(self, name: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
        finders: list[Any] = list(sys.meta_path)
        for finder in finders[finders.index(self) + 1 :] if self in finders else ():
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = None if find is None else find(name, path, target)
            if spec is not None:
                return spec
        return None

    def _prepare(self, spec: ModuleSpec) -> None:
        loader: Any = spec.loader
        if "exec_module" in vars(loader):
            return
        plain, run = loader.exec_module, _bootstrap._call_with_frames_removed

        def exec_module(module: ModuleType) -> None:
            if vars(loader).get("exec_module") is exec_module:
                del loader.exec_module
            code = self.code_of(loader, module.__name__)
            if code is None:
                plain(module)
            else:
                runtime.runs_in(module)
                run(exec, code, module.__dict__)

        assert isinstance(exec_module, FunctionType)
        exec_module.__code__ = exec_module.__code__.replace(co_filename=_MACHINERY)
        loader.exec_module = exec_module

    def _prepare_main(self, name: str, loader: Any) -> None:
        """Give runpy, when it asks for what ``python -m`` names, the rewritten code."""
        plain = loader.get_code

        def get_code(fullname: str) -> CodeType | None:
            if vars(loader).get("get_code") is get_code:
                del loader.get_code
            code = self.code_of(loader, name, told_as="__main__")
            return plain(fullname) if code is None else code

        loader.get_code = get_code

    def code_of(self, loader: Any, name: str, *, told_as: str = "", first: str = "") -> CodeType | None:
        """The rewritten code of a module, None to run it as it is.

        Args:
            loader: Reads its source.
            name: The loader's name for it.
            told_as: Under which name its disposition is kept, if another.
            first: Name of a function in ``builtins`` that the code calls before anything else.
        """
        if not self._active:
            return None
        try:
            code, disposition = self._made(loader, name, told_as or name, first)
        except Exception as error:  # noqa: BLE001  the step guard: a module that we cannot rewrite runs as it is, and raises its own errors
            code, disposition = None, Disposition(told_as or name, f"not rewritten: {type(error).__name__}: {str(error)[:200]}")
        with contextlib.suppress(Exception):
            self.dispositions.tell(disposition)
        return code

    def _made(self, loader: Any, name: str, told_as: str, first: str) -> tuple[CodeType | None, Disposition]:
        filename = loader.get_filename(name)
        source = loader.get_data(filename)
        if len(source) > _MOST_BYTES:
            return None, Disposition(told_as, f"not rewritten: its source has {len(source)} bytes")
        key = key_of(source, filename, everything=self._everything, first=first)
        made = self._cache.find(key, filename)
        if made is None:
            begun = time.monotonic()
            made = rewrite(source, filename, key, everything=self._everything, first=first)
            self._cache.keep(key, filename, made)
            self._took(time.monotonic() - begun, len(made.sites))
        runtime.know(key, made.sites)
        return made.code, Disposition(told_as, REWRITTEN, len(made.sites), made.left)

    def _took(self, seconds: float, sites: int) -> None:
        """Count a module that was rewritten now, and say what all of them have cost, if that is long."""
        self._num_made, self._num_sites, self._seconds = self._num_made + 1, self._num_sites + sites, self._seconds + seconds
        if self._seconds < self._says_at:
            return
        self._says_at = 2 * self._seconds
        modules, calls = f"{self._num_made:,} modules", f"{self._num_sites:,} calls"
        advice = "; a pattern instead of `all` takes less" if self._everything else ""
        sys.stderr.write(f"opguard: {self._seconds:.0f} s went into {calls} of {modules}, which are kept for the next run{advice}\n")
