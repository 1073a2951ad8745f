"""Folders a comparison makes: the finished result by rename, private copies, and the removal of both.

Whatever is half done lies under a name that says so; on an interrupt nothing of it stays.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import signal
import stat
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path

from opguard_harness.config import MIN_FREE_BYTES, cache_dir, fresh_name, private_dir, runs_dir
from opguard_harness.errors import OutRefused, ScratchRefused, SpaceShort


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ignore interrupts for a moment: removing a folder half-way would leave what an interrupt must not leave."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if threading.current_thread() is threading.main_thread() else ()
    before = [(number, signal.signal(number, signal.SIG_IGN)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


def choose_out(out: Path | None, folders: Sequence[Path]) -> Path:
    """The absolute folder that will hold the results.

    Args:
        out: What the user named, or None for a new folder under the state folder.
        folders: Folders of both sides; the result may not lie in them.

    Raises:
        OutRefused: It is not absent or empty, or lies inside a side.
    """
    final = (runs_dir() / fresh_name("compare") if out is None else out.expanduser()).resolve()
    side = _around(final, folders)
    if side is not None:
        raise OutRefused(
            f"The results would lie in {final}, inside the side {side}; a comparison never writes there.",
            hint="Name a folder elsewhere with --out, or set XDG_STATE_HOME to one.",
        )
    if out is None:
        private_dir(final.parent)
    if final.exists() and (not final.is_dir() or any(final.iterdir())):
        raise OutRefused(f"--out {final} exists and is not an empty folder.", hint="Name a folder that is absent or empty, or remove it.")
    return final


def _around(path: Path, folders: Sequence[Path]) -> Path | None:
    """The folder that a path is or lies in, links followed; None if it lies in none."""
    return next((folder for folder in folders if path.resolve().is_relative_to(folder.resolve())), None)


class Results:
    """A result folder that appears under its name only when it is whole.

    Use as a context manager: without ``finish`` everything is removed, or kept beside the final name as
    ``<name>.failed`` when ``keep`` was called and the reason was not an interrupt.
    """

    def __init__(self, final: Path) -> None:
        """Remember the final name; nothing is made yet."""
        self.final = final
        self.partial = final.with_name(f".{final.name}.partial-{os.getpid()}-{secrets.token_hex(3)}")
        self._made_parents: list[Path] = []
        self._failed: Path | None = None

    def __enter__(self) -> Results:
        """Make the partial folder, private, after a look at the free space."""
        parent = self.final.parent
        while not parent.exists():
            self._made_parents.append(parent)
            parent = parent.parent
        free = shutil.disk_usage(parent).free
        if free < MIN_FREE_BYTES:
            raise SpaceShort(f"Only {free // 2**20} MiB are free at {parent}; a comparison wants at least {MIN_FREE_BYTES // 2**20}.")
        self.partial.mkdir(mode=0o700, parents=True)
        return self

    def keep(self) -> Path:
        """From here on a failure keeps what there is: a program has run, its output may say why.

        Returns:
            Where a failure will leave it.
        """
        self._failed = self._failed or self._free_name()
        return self._failed

    def finish(self) -> Path:
        """Give the folder its final name.

        Raises:
            OutRefused: Another comparison took the name meanwhile; what there is is kept as a failure's.
        """
        try:
            self.partial.rename(self.final)  # POSIX: an empty folder of that name is replaced
        except OSError as error:
            kept = self.keep()
            raise OutRefused(
                f"--out {self.final} was taken by something else while this comparison ran; its results are in {kept}.",
                hint="Give each comparison a folder of its own.",
            ) from error
        return self.final

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """Remove or set aside what was not finished."""
        if not self.partial.exists():
            return
        with uninterrupted():
            if self._failed is not None and isinstance(error, Exception) and not _is_interrupt(error):
                self.partial.rename(self._failed)
                return
            shutil.rmtree(self.partial, ignore_errors=True)
            for parent in self._made_parents:
                if any(parent.iterdir()):
                    break
                parent.rmdir()

    def _free_name(self) -> Path:
        """``<name>.failed``, numbered if there are some already."""
        names = (self.final.with_name(f"{self.final.name}.failed{suffix}") for suffix in ("", *(f"-{n}" for n in range(2, 10_000))))
        return next(name for name in names if not name.exists())


def _is_interrupt(error: BaseException) -> bool:
    """Whether an error, or a member of a group, is an interrupt."""
    members: tuple[BaseException, ...] = getattr(error, "exceptions", ())
    return type(error).__name__ == "Interrupted" or any(isinstance(m, KeyboardInterrupt) or _is_interrupt(m) for m in members)


@contextmanager
def scratch(stem: str, sides: Sequence[Path] = ()) -> Iterator[Path]:
    """A private folder in the cache that is removed at the end, whatever happens.

    After a kill -9 nothing can be; such folders go when the next one is made. Each is locked by the process that uses it.

    Args:
        stem: Begins its name.
        sides: Folders that it may not lie in. A program in the home folder has the cache inside it; then the system's
            folder for temporary files is taken.

    Raises:
        ScratchRefused: Both lie inside a side.
    """
    base = _scratch_base(sides)
    with ExitStack() as stack:
        ours = base.parent == cache_dir()
        with _held(base) if ours else nullcontext():  # no one sweeps between the making of a folder and its lock
            if ours:
                _sweep(base)
            folder = base / fresh_name(stem)
            folder.mkdir(mode=0o700)
            stack.enter_context(_held(folder))
        try:
            yield folder
        finally:
            with uninterrupted():
                shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _held(folder: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold a folder's lock; a process that dies lets go of it.

    Raises:
        OSError: It was not to be waited for, and another holds it, or the file system has no locks for folders (NFS). Who waits
            goes on without one there, and what cannot be locked is not swept.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        with suppress(OSError) if wait else nullcontext():
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield
    finally:
        os.close(descriptor)


def _sweep(base: Path) -> None:
    """Remove folders of processes that are no more."""
    for left in base.iterdir():
        with suppress(OSError), _held(left, wait=False):
            shutil.rmtree(left, ignore_errors=True)


def _scratch_base(sides: Sequence[Path]) -> Path:
    """The folder that scratch folders are made in."""
    cache = cache_dir()
    if _around(cache, sides) is None:
        return private_dir(private_dir(cache) / "scratch")
    temporary = Path(tempfile.gettempdir())
    side = _around(temporary, sides)
    if side is not None:
        raise ScratchRefused(f"Both {cache} and {temporary} lie inside the side {side}; a comparison never writes there.")
    return temporary


def private_copy(source: Path, target: Path) -> Path:
    """Copy a side's folder, so that a second run does not meet what the first one left; links stay links.

    Raises:
        ScratchRefused: The copy would lie inside its source.
        SpaceShort: The copy would not fit.
    """
    if _around(target, [source]) is not None:
        raise ScratchRefused(f"A private copy of {source} would lie inside it, in {target}.")
    wanted = sum(path.lstat().st_size for path in source.rglob("*") if not path.is_dir())
    free = shutil.disk_usage(target.parent).free
    if wanted + MIN_FREE_BYTES > free:
        raise SpaceShort(
            f"A private copy of {source} needs {wanted // 2**20} MiB; {free // 2**20} MiB are free at {target.parent}.",
            hint="Set XDG_CACHE_HOME to a folder on a larger disk.",
        )
    shutil.copytree(source, target, symlinks=True, ignore=_not_copied)
    return target


def held_bytes(folder: Path) -> int:
    """Bytes of all files below a folder; what others remove meanwhile does not count."""
    total = 0
    for base, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                total += Path(base, name).lstat().st_size
    return total


def _not_copied(folder: str, names: list[str]) -> list[str]:
    """Byte code (it is made again) and what has no content to copy: sockets, pipes, devices."""
    return [name for name in names if name == "__pycache__" or not _has_content(Path(folder, name))]


def _has_content(path: Path) -> bool:
    """Whether a path is a file, a folder or a link."""
    mode = path.lstat().st_mode
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)
