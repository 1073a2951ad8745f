"""Logs of launches as files: what the collector of a rank wrote, row by row, with what its manifest says of it.

    python -m tests.support.launch_log            # writes the two synthetic logs of tests/fixtures/launches-gpt anew
    python -m tests.support.launch_log TRACE OUT  # a log out of a rank's trace: of a card, say

One JSON object a file: ``about``, ``report`` (the manifest's ``engines.launches``), ``rows`` (lists in the order of `LaunchRow`). The
synthetic pair goes with `PROGRAM`, event for event, and has all kinds of rows that a card's log can have.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opguard_core.trace.reader import RankTrace
from opguard_core.trace.schema import LaunchRow
from tests.support.gpt import GptShape, gpt
from tests.support.launch_rows import ADD, ADD_WIDE, CUSTOM, CUTLASS, GELU, OTHER_TILE, SPLIT, SPLIT_SUM, TILE, Device
from tests.support.memory import MemoryWriter

FIXTURES = Path(__file__).parents[1] / "fixtures"
GPT = FIXTURES / "launches-gpt"
PROGRAM = gpt(GptShape(layers=1, steps=2))
PIVOT = PROGRAM.find(1, operator="aten.gelu.default")[0]
"""Event that gives other bytes on the suspect, and runs as other kernels there."""

TIMES = {ADD: 2_100.0, ADD_WIDE: 1_900.0, GELU: 2_600.0, TILE: 41_000.0, OTHER_TILE: 39_500.0, SPLIT: 17_000.0, SPLIT_SUM: 3_200.0}
_BY_OPERATOR = {"aten.mm.default": TILE, "aten.addmm.default": OTHER_TILE, "aten.gelu.default": GELU, "aten.add.Tensor": ADD}
_NCCL = "_Z45ncclDevKernel_AllReduce_Sum_bf16_RING_LL24ncclDevKernelArgsStorageILm4096EE"


@dataclass
class Log(Device):
    """A log as a device: its rows stand as they are.

    Attributes:
        stored: Rows of the log.
    """

    stored: Sequence[LaunchRow] = field(default_factory=tuple)

    def rows(self, events: Sequence[tuple[int, str]]) -> list[LaunchRow]:
        """The rows, whatever the operators were."""
        return list(self.stored)

    def engine(self) -> dict[str, Any]:
        """What the manifest said."""
        return dict(self.report)


def load(path: Path) -> Log:
    """Read a log."""
    found = json.loads(path.read_text("ascii"))
    return Log(report=found["report"], stored=[LaunchRow(*row) for row in found["rows"]])


def save(path: Path, about: str, report: dict[str, Any], rows: Sequence[LaunchRow]) -> None:
    """Write a log, one row a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(json.dumps(list(row)) for row in rows)
    path.write_text(f'{{"about": {json.dumps(about)},\n"report": {json.dumps(report)},\n"rows": [\n{lines}\n]}}\n', "ascii")


def of_trace(trace: RankTrace, about: str, path: Path) -> None:
    """Write the log of a rank."""
    save(path, about, dict(trace.manifest.engines.get("launches", {})), list(trace.launches))


def synthetic(*, suspect: bool) -> tuple[dict[str, Any], list[LaunchRow]]:
    """Report and rows of one side of `PROGRAM`: a copy to the card, kernels of every operator, a graph of the optimizer, loose work."""
    writer = MemoryWriter(0, 1, "full")
    events = _operators(writer)
    rows: list[LaunchRow] = [
        LaunchRow(None, None, 0, "fill", "", None, 2, 4096, True),  # before the first event
        LaunchRow(None, None, 1, "kernel", CUTLASS, None, 1, 0, None),  # the driver did not tell its arguments
    ]
    for seq, operator in events:
        names = {_BY_OPERATOR.get(operator, ADD_WIDE): 1}
        if seq == PIVOT and suspect:
            names = {SPLIT: 1, SPLIT_SUM: 2}
        rows += [LaunchRow(seq, None, at, "kernel", name, 0, count, 0, None) for at, (name, count) in enumerate(names.items())]
        if operator == "aten.mm.default":
            rows.append(LaunchRow(seq, None, len(names), "fill", "", 0, 1, 32, None))
            rows.append(LaunchRow(seq, None, len(names) + 1, "cooperative kernel", "", 0, 1, 0, None))  # without a name
    first, last = events[0][0], events[-1][0]
    rows += [
        LaunchRow(first, None, 9, "copy", "", 1, 4, 65_536, None),
        LaunchRow(None, first, 0, "copy", "", 1, 3, 1_200, False),
        LaunchRow(first, last, 0, "graph", TILE, 1, 3, 0, True),  # a replay of what the first event captured
        LaunchRow(None, last, 1, "graph", ADD, 1, 6, 0, True),  # captured outside all events
        LaunchRow(None, last, 2, "graph", "", 1, 1, 0, True),  # captured unseen
        LaunchRow(None, last, 3, "kernel", _NCCL, 2, 8, 0, False),
    ]
    if suspect:
        rows.append(LaunchRow(None, first, 1, "kernel", CUSTOM, None, 7, 0, False))
    total = sum(row.count for row in rows)
    report = {
        "active": True,
        "recorded": total,
        "lost": 2 * suspect,
        "escaped": 0,
        "unattributed": sum(row.count for row in rows if row.seq is None),
        "rows": len(rows),
        "kernels": len({row.kernel for row in rows if row.kernel}),
        "unnamed": 1,
        "replays": 4,
        "replays_unknown": 1,
        "kernel_times": {name: {"count": 3, "mean_ns": mean} for name, mean in TIMES.items()},
    }
    return report, rows


def _operators(writer: MemoryWriter) -> list[tuple[int, str]]:
    from tests.support.launch_rows import Watched
    from tests.support.synthetic import emit_side  # it imports the rows of a device

    watched = Watched(writer)
    emit_side(PROGRAM, watched)
    return watched.operators


ABOUT = "synthetic, by tests/support/launch_log.py: {} of two versions of a small GPT"


def main() -> None:
    if len(sys.argv) == 3:
        of_trace(RankTrace.open(Path(sys.argv[1])), "recorded", Path(sys.argv[2]))
        return
    for side in ("reference", "suspect"):
        save(GPT / f"{side}.json", ABOUT.format(side), *synthetic(suspect=side == "suspect"))


if __name__ == "__main__":
    main()
