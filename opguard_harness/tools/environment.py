"""Tool `doctor`: is this machine ready, and what is the exact line that makes it so."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from opguard_harness.interface.declaration import Next, Result, Role, Tool, argument


@dataclass(frozen=True)
class DoctorArguments:
    python: str = argument("Training Python to check; empty looks for one as `compare` does.", "", role=Role.PYTHON)


@dataclass(frozen=True)
class Check:
    """One thing looked at. ``level``: ok, note (works, but know this) or fail (a comparison will not start)."""

    name: str
    level: str
    found: str
    fix: str = ""


@dataclass(frozen=True, kw_only=True)
class DoctorResult(Result):
    ready: bool
    python: str
    checks: list[Check] = field(default_factory=list)


def doctor(arguments: DoctorArguments) -> DoctorResult:
    """Check everything that a comparison needs."""
    from opguard_harness.doctor.checks import examine

    report = examine(Path(arguments.python) if arguments.python else None)
    checks = [Check(item.name, item.level, item.found, item.fix) for item in report.items]
    failing = [item.name for item in report.items if item.level == "fail"]
    if failing:
        summary = f"Not ready: {', '.join(failing)}. `checks` says what is wrong and the line that mends it."
        given = {"python": arguments.python} if arguments.python else {}
        following = [Next("doctor", given, "again, when the lines under `fix` have been run")]
    else:
        summary = f"Ready: {report.python} can run a training under capture."
        following = [Next("open_case", {}, "begin an investigation, or go on where one stopped")]
    return DoctorResult(summary=summary, ready=report.ready, python=report.python, checks=checks, next=following)


TOOLS = (
    Tool(
        name="doctor",
        group="environment",
        text="Check the training Python, the compiler, the disk, the MCP SDK and this installation. Use it before the first run, and "
        "whenever one does not start: it gives the exact install line.",
        arguments=DoctorArguments,
        result=DoctorResult,
        run=doctor,
        read_only=True,
    ),
)
