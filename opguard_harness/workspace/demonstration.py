"""Run a shipped pair and check the answer against what was planted in it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from opguard_harness.compare.folders import scratch
from opguard_harness.compare.interpreter import find
from opguard_harness.compare.pipeline import compare
from opguard_harness.compare.request import CaptureRequest, CompareRequest
from opguard_harness.errors import DemoMissed
from opguard_harness.report.progress import Progress
from opguard_harness.workspace.planted import Pair, stage


@dataclass(frozen=True)
class Demonstration:
    """The answer, and what is right in words."""

    answer: dict[str, Any]
    outcome: str


def demonstrate(pair: Pair, capture: CaptureRequest, out: Path | None, progress: Progress) -> Demonstration:
    """Compare copies of a shipped pair.

    Args:
        pair: The pair.
        capture: How to observe.
        out: Folder for the results, or None for the state folder.
        progress: Where to say what goes on.

    Raises:
        DemoMissed: The answer is not the planted difference.
        OpGuardError: No answer.
    """
    python = find(capture.python).path if pair.needs else capture.python
    with scratch("demo") as folder:
        sides = stage(pair, folder, python)
        request = CompareRequest(*sides, capture=replace(capture, python=python), argv=pair.launch, out=out)
        answer = compare(request, progress)
    missed = pair.missed(answer)
    if missed:
        wanted = f"planted difference is {pair.what}" if pair.expected else f"sides are equal ({pair.what})"
        raise DemoMissed(f"The demo's {wanted}; the answer was: {missed} (results: {answer['trace']['suspect']}).")
    return Demonstration(answer, f"The planted difference was found: {pair.what}" if pair.expected else f"As it should be: {pair.what}")
