"""Have two traces judged: open them, let the core align and certify, add what only the harness knows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from opguard_core.trace.reader import Run
from opguard_harness.compare.launching import SideRun
from opguard_harness.compare.request import CaptureRequest

OWN_REASONS = frozenset({"exit-codes-differ"})


def judge(reference: SideRun, suspect: SideRun, capture: CaptureRequest) -> dict[str, Any]:
    """Compare two traces."""
    raise NotImplementedError(f"{Run.open(reference.trace)} {Run.open(suspect.trace)} {capture}")


def contract_differences(reference: Path, suspect: Path) -> list[dict[str, Any]]:
    """What the two runs should share and do not."""
    raise NotImplementedError(f"{reference} {suspect}")
