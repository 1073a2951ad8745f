"""The compiled CPU twin: builds ``fingerprint.c`` once per machine and hands out its two entry points.

Sits in the training process below the probe. The library lives in a private folder (mode 0700, owned by this user), named by a
digest of the source, the compiler and the flags, and is renamed into place whole: any number of ranks may race, each builds
under its own name and the last rename wins with an equal file. A missing or failing compiler is a reason, not an error.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

SOURCE = Path(__file__).with_name("fingerprint.c")
MAX_DIMS = 24
_BASE_FLAGS = ("-O3", "-std=gnu11", "-fPIC", "-shared", "-fno-math-errno")
_BUILD_SECONDS = 120.0


class Plan(ctypes.Structure):
    """Mirrors ``Plan`` in ``fingerprint.c``; strides in bytes."""

    _fields_ = (
        ("widening", ctypes.c_int32),
        ("item_bytes", ctypes.c_int32),
        ("component_bytes", ctypes.c_int32),
        ("num_dims", ctypes.c_int32),
        ("numel", ctypes.c_int64),
        ("flip", ctypes.c_uint64 * 2),
        ("table", ctypes.c_void_p),
        ("shape", ctypes.c_int64 * MAX_DIMS),
        ("strides", ctypes.c_int64 * MAX_DIMS),
    )


class Native(NamedTuple):
    """The loaded library. ``holding`` keeps the GIL during the call, ``releasing`` lets other Python threads run."""

    holding: Any
    releasing: Any
    path: Path
    compiler: str
    flags: tuple[str, ...]


class NoNative(NamedTuple):
    """Why there is no compiled twin; goes into the manifest."""

    reason: str


def load() -> Native | NoNative:
    """Build if needed and load. Never raises for want of a compiler, a folder or a working build."""
    if sys.byteorder != "little":
        return NoNative("the compiled fingerprint reads little-endian memory; this host is big-endian")
    if os.environ.get("OPGUARD_NO_COMPILER"):
        return NoNative("OPGUARD_NO_COMPILER is set")
    compiler = find_compiler()
    if compiler is None:
        return NoNative("no C compiler: none of $CC, cc, gcc, clang is on PATH")
    try:
        folder = private_folder()
        source = SOURCE.read_bytes()
        identity = _compiler_identity(compiler)
    except OSError as error:
        return NoNative(f"the compiled fingerprint could not be prepared: {error}")
    failure = "no flags tried"
    for tuning in (("-march=native",), ()):
        flags = (*_BASE_FLAGS, *tuning)
        path = folder / f"fingerprint-{_digest(source, identity, flags)}.so"
        try:
            if not _is_ours(path):
                _build(compiler, flags, path)
            return _open(path, " ".join(compiler), flags)
        except (OSError, subprocess.SubprocessError) as error:
            detail = getattr(error, "stderr", "") or ""
            failure = f"{error} {detail}".strip()[:500]
    return NoNative(f"the C compiler {compiler[0]} could not build the fingerprint: {failure}")


def find_compiler() -> list[str] | None:
    """The command of the system's C compiler: ``$CC`` if it can be found, else cc, gcc, clang."""
    asked = shlex.split(os.environ.get("CC", ""))
    if asked and (found := shutil.which(asked[0])):
        return [found, *asked[1:]]
    for name in ("cc", "gcc", "clang"):
        if found := shutil.which(name):
            return [found]
    return None


def private_folder() -> Path:
    """The build cache: ours alone, mode 0700, no link.

    Raises:
        OSError: It could not be made, or someone else owns or can write it.
    """
    root = os.environ.get("OPGUARD_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME")
    candidates = [Path(root) if root else Path.home() / ".cache", Path(tempfile.gettempdir()) / f"opguard-cache-{os.getuid()}"]
    problem: OSError | None = None
    for candidate in candidates:
        folder = candidate / "opguard" / "build"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            facts = folder.lstat()
        except OSError as error:
            problem = error
            continue
        if stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.getuid() and not stat.S_IMODE(facts.st_mode) & 0o077:
            return folder
        problem = PermissionError(f"{folder} is not a folder that only this user can enter (want mode 0700)")
    raise problem or OSError("no place for the build cache")


def _digest(source: bytes, identity: str, flags: tuple[str, ...]) -> str:
    key = hashlib.sha256(source)
    key.update("\0".join((identity, *flags, platform.machine(), _cpu_features())).encode())
    return key.hexdigest()[:32]


def _compiler_identity(compiler: list[str]) -> str:
    path = Path(compiler[0]).resolve()
    facts = path.stat()
    return f"{shlex.join(compiler)} {path} {facts.st_size} {facts.st_mtime_ns}"


def _cpu_features() -> str:
    """What ``-march=native`` depends on: a home folder may be shared by machines of different generations."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


def _is_ours(path: Path) -> bool:
    try:
        facts = path.lstat()
    except FileNotFoundError:
        return False
    if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.getuid() or facts.st_mode & 0o022:
        raise PermissionError(f"{path} is not a file that only this user can write")
    return True


def _build(compiler: list[str], flags: tuple[str, ...], path: Path) -> None:
    descriptor, scratch = tempfile.mkstemp(prefix=f".{path.stem}-", suffix=".tmp", dir=path.parent)
    os.close(descriptor)
    try:
        subprocess.run(
            [*compiler, *flags, "-o", scratch, str(SOURCE)],
            check=True,
            capture_output=True,
            text=True,
            timeout=_BUILD_SECONDS,
            stdin=subprocess.DEVNULL,
        )
        Path(scratch).chmod(0o700)
        Path(scratch).replace(path)
    finally:
        Path(scratch).unlink(missing_ok=True)


def _open(path: Path, compiler: str, flags: tuple[str, ...]) -> Native:
    holding, releasing = ctypes.PyDLL(str(path)), ctypes.CDLL(str(path))
    if holding.opguard_fingerprint_plan_bytes() != ctypes.sizeof(Plan):
        raise OSError(f"{path} lays its plan out differently from this version")
    for library in (holding, releasing):  # no argtypes: both arguments are ctypes objects already, and checking them costs 0.2 us
        library.opguard_fingerprint.restype = None
    return Native(holding.opguard_fingerprint, releasing.opguard_fingerprint, path, compiler, flags)
