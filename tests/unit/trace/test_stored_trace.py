"""Claims: a trace that an earlier release wrote keeps reading, row for row.

`tests/fixtures/trace-v1` was written once by `write_fixture` below and is never written again; a later version gets a
fixture of its own.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from opguard_core.trace.reader import Run
from opguard_core.trace.schema import EventRow, FrameRow, LifetimeRow, SlotRow
from tests.support.synthetic import GptShape, gpt, write_run
from tests.support.traces import Rows, rows_of

FIXTURE = Path(__file__).parents[2] / "fixtures" / "trace-v1"


def write_fixture(folder: Path) -> None:
    """How the fixture came to be: two ranks, and the rows that they hold."""
    program = gpt(GptShape(layers=1, width=8, tokens=4, vocabulary=16, steps=1, world_size=2, loader_thread=True))
    write_run(folder / "run", program, program, stop=70, contract={"torch": "2.13"}, coverage={"sparse": {"count": 1, "reason": "example"}})
    rows = {str(rank): rows_of(trace) for rank, trace in Run.open(folder / "run").ranks.items()}
    (folder / "rows.json").write_text(json.dumps(rows, separators=(",", ":")))


def _rows(record: list[Any]) -> Rows:
    events, slots, frames, stacks, lifetimes = record
    return Rows(
        [EventRow(*row) for row in events],
        [[SlotRow(*row) for row in rows] for rows in slots],
        [FrameRow(*row) for row in frames],
        stacks,
        [LifetimeRow(*row) for row in lifetimes],
    )


def test_version_1():
    run = Run.open(FIXTURE / "run")
    expected = json.loads((FIXTURE / "rows.json").read_text())
    assert run.torn is None
    assert run.manifest.format == 1
    assert sorted(run.ranks) == [0, 1]
    for rank, trace in run.ranks.items():
        assert trace.torn is None
        assert rows_of(trace) == _rows(expected[str(rank)])
        assert trace.manifest.contract == {"torch": "2.13"}
        assert trace.manifest.coverage == {"sparse": {"count": 1, "reason": "example"}}
    assert run.source(run.ranks[0].frames[0].source).startswith("# ")
