"""Run the shipped pair and check the answer against what was planted in it."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opguard_harness.compare.folders import scratch
from opguard_harness.compare.pipeline import compare
from opguard_harness.compare.request import CaptureRequest, CompareRequest, SideRequest
from opguard_harness.errors import DemoMissed
from opguard_harness.report.progress import Progress
from opguard_harness.shipped import shipped_folder

PAIR = "tiny_gpt"


@dataclass(frozen=True)
class Demonstration:
    """The answer, and the planted difference in words."""

    answer: dict[str, Any]
    planted: str


def demonstrate(capture: CaptureRequest, out: Path | None, progress: Progress) -> Demonstration:
    """Compare copies of the shipped pair.

    Args:
        capture: How to observe.
        out: Folder for the results, or None for the state folder.
        progress: Where to say what goes on.

    Raises:
        DemoMissed: The answer is not the planted difference.
        OpGuardError: No answer.
    """
    pair = shipped_folder("examples") / PAIR
    planted = json.loads((pair / "planted.json").read_text("ascii"))
    with scratch("demo") as folder:
        for name in ("reference", "suspect"):
            shutil.copytree(pair / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        request = CompareRequest(SideRequest(folder / "reference"), SideRequest(folder / "suspect"), capture=capture, out=out)
        answer = compare(request, progress)
    pivot = answer["pivot"]
    place = (pivot or {}).get("suspect") or {}
    found = (answer["verdict"], (pivot or {}).get("step"), place.get("file"), planted["text"] in place.get("statement", ""))
    wanted = ("diverged", planted["step"], planted["file"], True)
    if found != wanted:
        seen = f"{answer['verdict']}" + (f" at step {pivot['step']} in {place.get('file')}:{place.get('line')}" if pivot else "")
        raise DemoMissed(
            f"The demo's planted difference is {planted['what']}; the answer was: {seen} (results: {answer['trace']['suspect']})."
        )
    return Demonstration(answer, str(planted["what"]))
