"""Which source a run was started from: a digest of the folder's Python files, and the commit its repository is at.

Reads files only; runs no program. Both are facts for a reader: that the two sides' sources differ is the normal case, and
what really ran is in the trace's ``sources``.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

MAX_ENTRIES = 20_000  # folder entries looked at before we say "unknown": a run may be started in a home folder
MAX_BYTES = 64 << 20
_SKIPPED = {"__pycache__", "node_modules", "site-packages", "dist-packages"}
_OBJECT_NAME = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?$")


def tree_digest(root: Path) -> dict[str, object]:
    """Digest of all ``*.py`` files below ``root``; hidden folders, virtual environments and packages are left out.

    Args:
        root: Folder; links in it are not followed.

    Returns:
        ``{"sha256", "num_files"}``, or ``{"unknown": reason}`` when the tree is too large.
    """
    total = hashlib.sha256()
    num_entries = num_files = num_bytes = 0
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if not _skip(Path(folder) / name))
        num_entries += len(folders) + len(files)
        if num_entries > MAX_ENTRIES:
            return {"unknown": f"more than {MAX_ENTRIES} entries below {root}"}
        for name in sorted(files):
            path = Path(folder) / name
            if not name.endswith(".py") or path.is_symlink():
                continue
            try:
                data = path.read_bytes()
            except OSError:
                continue  # gone or closed to us; the trace's own sources say what ran
            num_files, num_bytes = num_files + 1, num_bytes + len(data)
            if num_bytes > MAX_BYTES:
                return {"unknown": f"more than {MAX_BYTES} bytes of Python below {root}"}
            total.update(f"{path.relative_to(root).as_posix()}\0".encode("utf-8", "surrogateescape"))
            total.update(hashlib.sha256(data).digest())
    return {"sha256": total.hexdigest(), "num_files": num_files}


def _skip(folder: Path) -> bool:
    return folder.name.startswith(".") or folder.name in _SKIPPED or (folder / "pyvenv.cfg").exists()


def git_commit(root: Path) -> str | None:
    """Commit that the repository around ``root`` has checked out; None outside a repository or if it cannot be told."""
    for folder in (root, *root.parents):
        marker = folder / ".git"
        if marker.exists():
            return _head(marker)
    return None


def _head(marker: Path) -> str | None:
    try:
        git = marker
        if marker.is_file():  # a worktree or submodule: "gitdir: PATH"
            git = marker.parent / marker.read_text("utf-8").partition("gitdir:")[2].strip()
        head = (git / "HEAD").read_text("utf-8").strip()
        if not head.startswith("ref:"):
            return head if _OBJECT_NAME.match(head) else None
        name = head.partition("ref:")[2].strip()
        common = git / (git / "commondir").read_text("utf-8").strip() if (git / "commondir").is_file() else git
        for base in (git, common):
            if (base / name).is_file():
                found = (base / name).read_text("utf-8").strip()
                return found if _OBJECT_NAME.match(found) else None
        for line in (common / "packed-refs").read_text("utf-8").splitlines():
            found, _, ref = line.partition(" ")
            if ref == name and _OBJECT_NAME.match(found):
                return found
    except (OSError, UnicodeDecodeError):
        return None
    return None
