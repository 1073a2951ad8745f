"""What is a trace, and so read rather than run: the rules of a call and whoever carries it out must give the same answer."""

from __future__ import annotations

from pathlib import Path

RANK_FOLDERS = "rank-" + "[0-9]" * 5


def trace_folder(path: Path) -> Path | None:
    """The trace directory that ``path`` is, or holds as ``trace``; None when it is neither."""
    for folder in (path, path / "trace"):
        for rank in folder.glob(RANK_FOLDERS):
            if (rank / "manifest.json").exists() or any(rank.glob("*.arrow")):
                return folder
    return None
