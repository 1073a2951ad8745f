"""Which stored run another one is to be compared with."""

from __future__ import annotations

from pathlib import Path

from opguard_core.errors import OpGuardError, TraceFormatError
from opguard_core.trace.manifest import RunManifest, read_run_manifest
from opguard_harness.access.opened import MARK
from opguard_harness.config import runs_dir
from opguard_harness.workspace.cases import require_case

LOOKED_AT = 64  # newest folders


def counterpart(run: str, case: str = "") -> str | None:
    """The newest other run that was noted in the same case, else that ran in the same folder.

    Only runs of the same plan fit, which fixes mode and steps too: others get no verdict.

    Args:
        run: Id of a stored run.
        case: Id of the case it was made for; empty for none.

    Cost: a small file for each of the newest folders.
    """
    own = _manifest(runs_dir() / run)
    if own is None:
        return None
    newest = sorted(runs_dir().iterdir(), key=lambda path: path.lstat().st_mtime_ns, reverse=True)[:LOOKED_AT]
    others = {path.name: found for path in newest if path.name != run and (found := _manifest(path)) is not None}
    fitting = {name: found for name, found in others.items() if found.extra.get("plan_hash") == own.extra.get("plan_hash")}
    noted = _noted(case)
    in_case = [name for name in fitting if name in noted]
    same_folder = [name for name, found in fitting.items() if found.cwd == own.cwd]
    return next(iter([*in_case, *same_folder]), None)


def _manifest(folder: Path) -> RunManifest | None:
    """The manifest of a stored run; None if a folder is something else, not finished, or came out of a pack."""
    if folder.name.startswith(".") or ".failed" in folder.name or (folder / MARK).exists():
        return None
    try:
        return read_run_manifest(folder / "trace")
    except TraceFormatError:
        return None


def _noted(case: str) -> set[str]:
    """Jobs of a case; a case that has gone meanwhile has none, and that is not this run's trouble."""
    try:
        return {item.job for item in require_case(case).jobs} if case else set()
    except OpGuardError:
        return set()
