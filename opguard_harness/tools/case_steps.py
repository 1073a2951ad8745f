"""The next step of a case, computed from what there is: nothing is remembered that could be wrong after a restart."""

from __future__ import annotations

from pathlib import Path

from opguard_core.ids import SIDES
from opguard_harness.interface.declaration import Next
from opguard_harness.tools.job_result import MOST_WAIT_S
from opguard_harness.workspace.listing import UNFINISHED, Entry

_SCRIPT = "train.py"  # what `compare` runs when nothing else is said


def next_steps(case: str, root: Path, rows: list[Entry], *, findings: int, reported: bool = False, loose: str = "") -> list[Next]:
    """What to call now.

    Args:
        case: Id of the case.
        root: Its root folder.
        rows: What was started for it, newest first.
        findings: How many findings stand.
        reported: There is a report that is newer than the newest finding.
        loose: A finished comparison of programs of that root that no case notes; empty if there is none.
    """
    running = [row for row in rows if row.state in UNFINISHED]
    compared = [row for row in rows if row.kind == "compare" and row.state == "succeeded"]
    if running:
        return [Next("get_job", {"job": running[0].id, "wait_s": MOST_WAIT_S}, f"it is {running[0].state}")]
    if compared and findings:
        found = Next("first_difference", {"comparison": compared[0].id}, "what the newest comparison found")
        if reported:
            return [found]
        return [Next("write_report", {"case": case}, "every finding is checked again and written down"), found]
    if compared:
        return [Next("first_difference", {"comparison": compared[0].id}, "what the newest comparison found")]
    failed = next((row for row in rows if row.job is not None and row.state != "succeeded"), None)
    if failed is not None:
        return [Next("get_job", {"job": failed.id}, f"why it is {failed.state}")]
    if rows:
        return [Next("list_runs", {"case": case}, "the runs of this case; `align` pairs two of them")]
    if loose:
        return [Next("first_difference", {"comparison": loose}, "it compared programs of this folder; cite it, and the case takes it in")]
    sides = certain_sides(root)
    if sides is not None:
        return [Next("compare", {**sides, "case": case}, "run both sides and find the first difference")]
    return [Next("doctor", {}, "whether this machine is ready; then `compare` with both sides and this case")]


def read_steps(case: str, rows: list[Entry]) -> list[Next]:
    """What to call on a case that came out of a pack: it can be read, and its report written.

    Args:
        case: Id of the case.
        rows: What is in it, newest first.
    """
    compared = [row for row in rows if row.kind == "compare" and row.state == "succeeded"]
    if not compared:
        return [Next("list_runs", {"case": case}, "what is in it")]
    return [
        Next("first_difference", {"comparison": compared[0].id}, "what its newest comparison found"),
        Next("write_report", {"case": case}, "everything in it is checked again, here"),
    ]


def certain_sides(root: Path) -> dict[str, str] | None:
    """Both sides, where the root leaves no doubt: it holds ``reference`` and ``suspect``, each with the script that is run by default."""
    found = {side: root / side for side in SIDES}
    whole = all(folder.is_dir() and not folder.is_symlink() and (folder / _SCRIPT).is_file() for folder in found.values())
    return {side: str(folder) for side, folder in found.items()} if whole else None
