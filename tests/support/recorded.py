"""Runs a function under capture, in this process, into a real trace folder."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from opguard_core.capture.session import start
from opguard_core.plan.config import RunConfig
from opguard_core.trace.reader import Run

ROOT = Path(__file__).resolve().parents[2]


def record(folder: Path, program: Callable[[], object], *, mode: str = "full", steps: tuple[int, int] | None = None) -> Run:
    """Capture one call of a program.

    Args:
        folder: Absent; gets the trace.
        program: Called once.
        mode: One of ``ids.MODES``.
        steps: Capture window.
    """
    folder.mkdir(parents=True)
    plan = hashlib.sha256(repr((mode, steps)).encode()).hexdigest()
    session = start(RunConfig(run_dir=folder, user_root=ROOT, mode=mode, steps=steps, plan_hash=plan))
    try:
        program()
    finally:
        session.stop("exit")
    return Run.open(folder)
