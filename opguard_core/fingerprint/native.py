"""The compiled CPU twin: builds ``fingerprint.c`` (with ``dense.h``) once per machine and hands out its two entry points.

Sits in the training process below the probe. The library lives in a private folder (mode 0700, owned by this user), named by a
digest of the source, the compiler and the flags and by one of its own bytes, and is renamed into place whole: any number of ranks
may race, each builds under a name of its own. A missing or failing compiler is a reason, not an error.
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
_SOURCES = (SOURCE, SOURCE.with_name("dense.h"))
MAX_DIMS = 24
_BASE_FLAGS = ("-O3", "-std=gnu11", "-fPIC", "-shared", "-fno-math-errno")
_BUILD_SECONDS = 120.0


class Plan(ctypes.Structure):
    """Mirrors ``Plan`` in ``dense.h``; strides in bytes."""

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
    """Build if needed and load. Never raises for want of a compiler, a folder or a working build.

    Cost: about 0.1 ms when built before; a second of compiling, in a child process, when not. A launcher that calls this before it
    starts the ranks spares them both the wait and the child.
    """
    if sys.byteorder != "little" or os.name != "posix":
        return NoNative(f"the compiled fingerprint is for little-endian POSIX hosts; this is {os.name}, {sys.byteorder}-endian")
    if os.environ.get("OPGUARD_NO_COMPILER"):
        return NoNative("OPGUARD_NO_COMPILER is set")
    compilers = find_compilers()
    if not compilers:
        return NoNative("no C compiler: none of $CC, cc, gcc, clang is on PATH")
    try:
        folder = private_folder()
    except OSError as error:
        return NoNative(f"the compiled fingerprint has no private folder to live in: {error}")
    failures = []
    for compiler in compilers:
        for tuning in (("-march=native",), ()):
            try:
                return build_and_open(compiler, tuning, folder)
            except (OSError, subprocess.SubprocessError) as error:
                detail = getattr(error, "stderr", None) or str(error)
                failures.append(f"{shlex.join([*compiler, *tuning])}: {detail.strip()[:300]}")
    return NoNative("no C compiler could build the fingerprint: " + "; ".join(failures))


def build_and_open(compiler: list[str], tuning: tuple[str, ...], folder: Path) -> Native:
    """The library for these flags, built now unless ``folder`` has it.

    Raises:
        OSError: It cannot be written, loaded or trusted.
        subprocess.SubprocessError: The compiler failed or took more than two minutes.
    """
    flags = (*_BASE_FLAGS, *tuning)
    key = _digest(b"".join(path.read_bytes() for path in _SOURCES), _compiler_identity(compiler), flags)
    path = _find(folder, key) or _build(compiler, flags, folder, key)
    return _open(path, compiler, flags)


def find_compilers() -> list[list[str]]:
    """The commands of the system's C compilers: ``$CC`` if it can be found, then cc, gcc, clang."""
    try:
        asked = shlex.split(os.environ.get("CC", ""))
    except ValueError:  # an unbalanced quote
        asked = []
    commands = [asked] if asked else []
    commands += [["cc"], ["gcc"], ["clang"]]
    return [[found, *rest] for name, *rest in commands if (found := shutil.which(name))]


def private_folder() -> Path:
    """The build cache: ours alone, mode 0700, no link. In the user's cache, else below the folder for temporary files.

    Raises:
        OSError: It could not be made, or someone else owns or can enter it.
    """
    root = os.environ.get("XDG_CACHE_HOME", "")
    if not Path(root).is_absolute():  # a relative one is to be ignored, and would land in the program's own folder
        root = str(Path("~/.cache").expanduser())
    # In a folder that all may write the name must be directly ours: whoever owns a folder above could swap it.
    candidates = (Path(root) / "opguard" / "build", Path(tempfile.gettempdir()) / f"opguard-build-{os.getuid()}")
    problems: list[str] = []
    for folder in candidates:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            facts = folder.lstat()
        except OSError as error:
            problems.append(str(error))
            continue
        if stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.getuid() and not stat.S_IMODE(facts.st_mode) & 0o077:
            return folder
        problems.append(f"{folder} is not a folder that only this user can enter (want mode 0700)")
    raise PermissionError("; ".join(problems))


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


def _find(folder: Path, key: str) -> Path | None:
    """The library for ``key`` if it is there, ours and undamaged: loading one that was cut short can kill the process."""
    for path in sorted(folder.glob(f"fingerprint-{key}-*.so")):
        facts = path.lstat()
        if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.getuid() or facts.st_mode & 0o022:
            raise PermissionError(f"{path} is not a file that only this user can write")
        if path.stem.endswith(f"-{_content_digest(path)}"):
            return path
        path.unlink(missing_ok=True)
    return None


def _content_digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:32]


def _build(compiler: list[str], flags: tuple[str, ...], folder: Path, key: str) -> Path:
    descriptor, name = tempfile.mkstemp(prefix=".fingerprint-", suffix=".tmp", dir=folder)
    os.close(descriptor)
    scratch = Path(name)
    try:
        subprocess.run(
            [*compiler, *flags, "-o", name, str(SOURCE)],
            check=True,
            capture_output=True,
            text=True,
            timeout=_BUILD_SECONDS,
            stdin=subprocess.DEVNULL,
            env={name: value for name, value in os.environ.items() if name != "LD_PRELOAD"},
        )
        scratch.chmod(0o700)
        path = folder / f"fingerprint-{key}-{_content_digest(scratch)}.so"
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)
    return path


def _open(path: Path, compiler: list[str], flags: tuple[str, ...]) -> Native:
    holding, releasing = ctypes.PyDLL(str(path)), ctypes.CDLL(str(path))
    if holding.opguard_fingerprint_plan_bytes() != ctypes.sizeof(Plan):
        raise OSError(f"{path} lays its plan out differently from this version")
    for library in (holding, releasing):  # no argtypes: both arguments are ctypes objects already, and checking them costs 0.2 us
        library.opguard_fingerprint.restype = None
    return Native(holding.opguard_fingerprint, releasing.opguard_fingerprint, path, shlex.join(compiler), flags)
