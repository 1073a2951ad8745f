"""The main script under the hook: rewritten before it starts, as far as the way it is started allows.

    python -m pkg.train   runpy asks the loader for the module's code: it gets the rewritten one
    python folder/        the same, of the folder's ``__main__``
    python train.py       the interpreter itself would compile the file. Where ``sys.path_importer_cache`` has an importer for a script's
                          path, it takes the script for a folder with a ``__main__`` and starts it through runpy, too. The rewritten code
                          first puts back what that changes: ``sys.path[0]``, ``__spec__``, ``__package__``, ``__loader__``.

    multiprocessing       a child that is spawned runs its parent's script again, through runpy, too

What stays different for a script: two frames of runpy below its own, as under ``python -m``. Commands (``-c``), standard input and
sessions that stay open (``-i``) are left alone.
"""

from __future__ import annotations

import builtins
import os
import runpy
import sys
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import CodeType
from typing import Any

from opguard_core.instrument.dispositions import Disposition
from opguard_core.instrument.hook import Hook

_SPAWNED = "from multiprocessing.spawn import"
_SETTLE = "__opguard_main__"


class Main:
    """Prepares the start of one process's main program; before it begins.

    Args:
        hook: Rewrites; stands on ``sys.meta_path``.
        kind: "script", "module", "command" or "stdin".
        value: The script's path as given, or the module's name.
    """

    def __init__(self, hook: Hook, kind: str, value: str) -> None:
        self._hook, self._kind, self._value = hook, kind, value
        self._path = os.path.join(os.getcwd(), value) if kind == "script" else ""  # noqa: PTH109, PTH118  as the interpreter makes it
        self._code: CodeType | None = None

    def prepare(self) -> None:
        """Have the main program run rewritten code, or say why it does not."""
        if self._kind == "module":
            self._hook.main_modules = frozenset({self._value, f"{self._value}.__main__"})
            return
        if self._kind == "command" and self._value.startswith(_SPAWNED):
            self._prepare_spawned()
        elif self._kind != "script":
            self._leave(
                f"main script: {'a command of -c' if self._kind == 'command' else 'standard input'} is compiled before we can see it"
            )
        elif sys.flags.interactive or os.environ.get("PYTHONINSPECT"):
            self._leave("main script: the session stays open behind it")
        elif not os.path.isfile(self._path):  # noqa: PTH113
            self._hook.main_modules = frozenset({"__main__"})
        else:
            self._prepare_script()

    def _leave(self, reason: str) -> None:
        self._hook.dispositions.tell(Disposition("__main__", reason))

    def _prepare_script(self) -> None:
        if _is_archive(self._path):
            self._leave("main script: in a zip file")
            return
        loader = SourceFileLoader("__main__", self._path)
        code = self._hook.code_of(loader, "__main__", first=_SETTLE)
        if code is None:
            return
        self._code = code
        loader.get_code = lambda fullname: code  # type: ignore[method-assign]
        spec = ModuleSpec("__main__", loader, origin=self._path)
        self._hook.main_spec = spec
        sys.path_importer_cache[self._path] = self
        setattr(builtins, _SETTLE, self._settle)

    def _prepare_spawned(self) -> None:
        """A child of multiprocessing runs its parent's script once more, as ``__mp_main__``: runpy compiles that file."""
        plain: Any = runpy._get_code_from_file  # type: ignore[attr-defined]

        def get_code(*arguments: Any) -> Any:
            runpy._get_code_from_file = plain  # type: ignore[attr-defined]
            result = plain(*arguments)
            filename = arguments[-1]  # behind the name that it runs under, before 3.13
            code = self._hook.code_of(SourceFileLoader("__mp_main__", filename), "__mp_main__")
            if code is None:
                return result
            return (code, *result[1:]) if isinstance(result, tuple) else code

        runpy._get_code_from_file = get_code  # type: ignore[attr-defined]

    def find_spec(self, name: str, target: Any = None) -> None:
        """As an importer: nothing is found in a script."""
        del name, target

    def _settle(self) -> None:
        """The script begins: its globals and the path are what they would be."""
        delattr(builtins, _SETTLE)
        sys.path_importer_cache.pop(self._path, None)
        self._hook.main_spec = None
        names = sys._getframe(1).f_globals
        names.update(__spec__=None, __package__=None, __cached__=None, __loader__=SourceFileLoader("__main__", self._path))
        if sys.path and sys.path[0] == self._path:
            if getattr(sys.flags, "safe_path", False):
                del sys.path[0]
            else:
                sys.path[0] = os.path.dirname(os.path.realpath(self._path))  # noqa: PTH120


def _is_archive(path: str) -> bool:
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            start = file.read(4)
            file.seek(max(0, os.path.getsize(path) - 65_557))  # noqa: PTH202
            return start == b"PK\x03\x04" or b"PK\x05\x06" in file.read()
    except OSError:
        return False
