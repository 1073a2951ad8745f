"""The private folder of built files, and what may be trusted in it.

A file there is loaded into the training, so it must be ours alone: the folder has mode 0700 and our owner and is no link, a file may be
written by nobody else, and its name ends with a digest of its own bytes (loading one that was cut short can kill the process).
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from pathlib import Path


def private_folder(kind: str = "build") -> Path:
    """A cache: ours alone, mode 0700, no link. In the user's cache, else below the folder for temporary files.

    Args:
        kind: Name of the folder: "build" for built files, "callsites" for rewritten modules.

    Raises:
        OSError: It could not be made, or someone else owns or can enter it.
    """
    root = os.environ.get("XDG_CACHE_HOME", "")
    if not Path(root).is_absolute():  # a relative one is to be ignored, and would land in the program's own folder
        root = str(Path("~/.cache").expanduser())
    # In a folder that all may write the name must be directly ours: whoever owns a folder above could swap it.
    candidates = (Path(root) / "opguard" / kind, Path(tempfile.gettempdir()) / f"opguard-{kind}-{os.getuid()}")
    problems: list[str] = []
    for folder in candidates:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            facts = folder.lstat()
        except OSError as error:
            problems.append(str(error))
            continue
        if not _ours_alone(facts):
            problems.append(f"{folder} is not a folder that only this user can enter (want mode 0700)")
        elif not os.access(folder, os.W_OK):
            problems.append(f"{folder} cannot be written")
        else:
            return folder
    raise PermissionError("; ".join(problems))


def find(folder: Path, name: str, key: str, suffix: str = ".so") -> Path | None:
    """The file built for ``key`` if it is there, ours and undamaged; a damaged one is removed.

    Raises:
        OSError: There is one that others can write.
    """
    for path in sorted(folder.glob(f"{name}-{key}-*{suffix}")):
        facts = path.lstat()
        if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.getuid() or facts.st_mode & 0o022:
            raise PermissionError(f"{path} is not a file that only this user can write")
        if path.stem.endswith(f"-{content_digest(path)}"):
            return path
        path.unlink(missing_ok=True)
    return None


def content_digest(path: Path) -> str:
    """Of a file's bytes, as it stands in the file's name."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:32]


def _ours_alone(facts: os.stat_result) -> bool:
    return stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.getuid() and not stat.S_IMODE(facts.st_mode) & 0o077
