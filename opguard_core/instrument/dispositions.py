"""For every module of the program: whether its calls were rewritten, and why if they were not."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from importlib.machinery import BuiltinImporter, ExtensionFileLoader, FrozenImporter, SourceFileLoader, SourcelessFileLoader
from types import ModuleType
from typing import Any
from zipimport import zipimporter

from opguard_core.instrument.known import OWN, TORCH, known_package

REWRITTEN = "rewritten"
_MAIN = ("__main__", "__mp_main__")
LISTED = 2000  # modules of the program that the manifest names one by one


@dataclass(frozen=True)
class Disposition:
    """What became of one module.

    Attributes:
        module: Its name.
        reason: `REWRITTEN`, or why it was left alone.
        sites: Calls and stores in it that can be observed.
        left: Calls and stores that were left alone, by reason.
    """

    module: str
    reason: str
    sites: int = 0
    left: Mapping[str, int] = field(default_factory=dict)


def why_never(name: str, *, everything: bool) -> str:
    """Why a module of this name is left alone whatever it holds, "" if it is not."""
    package = name.partition(".")[0]
    if package in OWN:
        return "it is OpGuard's own"
    if package in TORCH:
        return "torch and triton: parts of them are compiled from their source, and the dispatcher sees their operators"
    known = "" if everything else known_package(name)
    if known == "the standard library":
        return "standard library: no call of an extension under suspicion is in it"
    return f"{known}: a common package whose calls are not under suspicion" if known else ""


def why_loader(loader: Any) -> str:
    """Why what this loader loads is left alone, "" for a source file."""
    if type(loader) is SourceFileLoader:
        return ""
    if loader is None or type(loader).__name__ in ("NamespaceLoader", "_NamespaceLoader"):
        return "namespace package: it has no code"
    if loader is BuiltinImporter or isinstance(loader, BuiltinImporter):
        return "built into the interpreter"
    if loader is FrozenImporter or isinstance(loader, FrozenImporter):
        return "frozen into the interpreter"
    if isinstance(loader, ExtensionFileLoader):
        return "native extension: it has no Python code"
    if isinstance(loader, SourcelessFileLoader):
        return "compiled file without source"
    if isinstance(loader, zipimporter):
        return "in a zip file"
    kind = type(loader)
    return f"loaded by {kind.__module__}.{kind.__qualname__}, which makes its code itself"


class Dispositions:
    """Keeps what was decided while modules were imported, and says at the end what became of all.

    Args:
        earlier: Names of the modules that were there before the hook.
        everything: Whether the standard library and common packages are rewritten, too.
    """

    def __init__(self, earlier: Iterable[str], *, everything: bool) -> None:
        self._earlier, self._everything = frozenset(earlier), everything
        self._known: dict[str, Disposition] = {}

    def tell(self, disposition: Disposition) -> None:
        """A module is about to run."""
        self._known[disposition.module] = disposition

    def of(self, name: str, module: ModuleType | None) -> Disposition:
        """What became of a module."""
        known = self._known.get(name)
        if name in _MAIN and module is not None and sys.modules.get("__main__") is sys.modules.get("__mp_main__"):
            known = self._known.get("__mp_main__") or self._known.get("__main__")  # one module under both names
            known = known and (known if name == "__main__" else replace(known, module=name, sites=0, left={}))
        return known or Disposition(name, self._why(name, module))

    def _why(self, name: str, module: ModuleType | None) -> str:
        if name in _MAIN:
            return "main script: it began before the hook, or runpy compiled it by itself"
        never = why_never(name, everything=self._everything)
        if never:
            return never
        spec = getattr(module, "__spec__", None)
        if spec is None:
            return "made by the program, not imported"
        why = why_loader(spec.loader)
        if why and not (spec.loader is None and getattr(module, "__file__", None)):
            return why
        if name in self._earlier:
            return "imported before the capture began"
        return "loaded without the import system (by its path), or put into sys.modules by the program"

    def report(self) -> dict[str, Any]:
        """For the manifest: each module of the program's own by name, the others counted by reason.

        Cost: a look at every module there is, once.
        """
        listed: dict[str, dict[str, Any]] = {}
        counted: Counter[str] = Counter()
        left: Counter[str] = Counter()
        num_sites = 0
        for name, module in sorted(dict(sys.modules).items()):
            one = self.of(name, module)
            counted[one.reason.partition(":")[0]] += 1
            num_sites += one.sites
            left.update(one.left)
            if not why_never(name, everything=False) and len(listed) < LISTED:
                listed[name] = {"reason": one.reason, **({"sites": one.sites, "left": dict(one.left)} if one.reason == REWRITTEN else {})}
        return {"modules": listed, "by_reason": dict(counted), "sites": num_sites, "left": dict(left)}
