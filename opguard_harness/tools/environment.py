"""Tool `doctor`: is this machine ready, and what is the exact line that makes it so."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from opguard_harness.tools.declaration import Next, Result, Tool, argument


@dataclass(frozen=True)
class DoctorArguments:
    python: str = argument("Training Python to check: a path or a name on PATH; empty looks for one as `compare` does.", "")


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
    failing = [item for item in report.items if item.level == "fail"]
    if failing:
        summary = f"Not ready: {failing[0].found} {failing[0].fix}"
        following = []
    else:
        summary = f"Ready: {report.python} can run a training under capture."
        following = [Next("launch_preflight", {}, "look at what both sides share before a long run")]
    return DoctorResult(summary=summary, ready=not failing, python=report.python, checks=checks, next=following)


TOOLS = (
    Tool(
        name="doctor",
        group="environment",
        text="Check the training Python, the compiler, the disk and this installation. Use it first, and whenever a run does not start: "
        "it prints the exact install line.",
        arguments=DoctorArguments,
        result=DoctorResult,
        run=doctor,
        read_only=True,
    ),
)
