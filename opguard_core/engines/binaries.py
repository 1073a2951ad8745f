"""Which binaries the observed native functions come from: two sides whose extensions were built from other code say so.

The file is the one that holds the function's machine code, whatever name it was imported under.
"""

from __future__ import annotations

import ctypes
import hashlib
import sys
from pathlib import Path
from types import BuiltinFunctionType, MethodType
from typing import Any

MAX_BYTES = 1 << 28  # of a binary that is read
_FuncPtr = ctypes._CFuncPtr  # type: ignore[attr-defined]


class _Found(ctypes.Structure):
    """``Dl_info`` of dlfcn.h."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("symbol", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def file_of(function: Any) -> Path | None:
    """The binary that holds a native function, None if it cannot be told."""
    address = _address(function)
    if address is None or not sys.platform.startswith("linux"):
        return None
    found = _Found()
    if not ctypes.CDLL(None).dladdr(ctypes.c_void_p(address), ctypes.byref(found)) or not found.file:
        return None
    return Path(found.file.decode("utf-8", "surrogateescape"))


def _address(function: Any) -> int | None:
    if type(function) is MethodType:
        function = function.__func__
    if type(function) is BuiltinFunctionType:
        ask = ctypes.pythonapi.PyCFunction_GetFunction
        ask.argtypes, ask.restype = (ctypes.py_object,), ctypes.c_void_p
        found: int | None = ask(function)
        return found
    return ctypes.cast(function, ctypes.c_void_p).value if issubclass(type(function), _FuncPtr) else None


class Binaries:
    """Digests of binaries by the module whose functions they hold."""

    def __init__(self) -> None:
        self._digests: dict[str, str] = {}
        self._files: dict[Path, str] = {}

    def see(self, operator: str, function: Any) -> None:
        """A function is observed for the first time.

        Args:
            operator: As events name it.
            function: It.

        Raises:
            OSError: Its file cannot be read.

        Cost: reads the file once.
        """
        module = operator.rpartition(".")[0]
        if module in self._digests:
            return
        self._digests[module] = ""
        path = file_of(function)
        if path is None:
            return
        if path not in self._files:
            self._files[path] = ""
            if path.is_file() and path.stat().st_size <= MAX_BYTES:
                self._files[path] = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
        self._digests[module] = self._files[path]

    def facts(self) -> dict[str, Any]:
        """For the contract; empty if nothing was seen."""
        known = {module: digest for module, digest in sorted(self._digests.items()) if digest}
        return {"extension.code": known} if known else {}
