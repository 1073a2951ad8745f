"""A state folder with one case and one comparison of synthetic traces: no torch, no processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from opguard_core.evidence.refs import EventRef
from opguard_core.trace.identity import trace_digest
from opguard_harness.config import runs_dir
from opguard_harness.report.progress import Silent
from opguard_harness.tools.align import AlignArguments, align
from opguard_harness.workspace.cases import Case, note_job, open_or_resume
from tests.support.synthetic import Corrupt, GptShape, Side, gpt, write_run


class StoredCase:
    """What `stored_case` made.

    Attributes:
        case: The case.
        comparison: Id of its one comparison, which diverged.
        answer: Its answer.
    """

    def __init__(self, case: Case, comparison: str) -> None:
        self.case = case
        self.comparison = comparison
        self.answer: dict[str, Any] = json.loads((runs_dir() / comparison / "answer.json").read_text())

    def cited(self, side: str, part: str = "") -> str:
        """The evidence id of the pivot on one side."""
        pivot = self.answer["pivot"]
        return str(EventRef(trace_digest(Path(self.answer["trace"][side])), pivot["rank"], pivot["seq"][side], part))


def stored_case(
    folder: Path, *, symptom: str = "The loss is off from step 1.", steps: int = 2, launches: tuple[Any, Any] = (None, None)
) -> StoredCase:
    """Make it; ``XDG_STATE_HOME`` has to name a folder of the test's own.

    Args:
        folder: Gets both traces; becomes the root of the case.
        symptom: Of the case.
        steps: Of both trainings; other traces come of another number.
        launches: `launch_rows.Device` of each side, or none.
    """
    program = gpt(GptShape(layers=1, steps=steps))
    at = program.find(1, operator="aten.gelu.default")[0]
    write_run(folder / "reference", program, mode="verify", launches=launches[0])
    write_run(folder / "suspect", Side(program, [Corrupt(at)]), mode="verify", launches=launches[1])
    case, _ = open_or_resume(folder, symptom)
    found = align(AlignArguments(str(folder / "reference"), str(folder / "suspect")), Silent())
    note_job(case.id, found.comparison)
    return StoredCase(case, found.comparison)
