"""`timeline`: a comparison as a file for the Perfetto viewer."""

from __future__ import annotations

from pathlib import Path

import typer

from opguard_harness.answer.plain import dumps
from opguard_harness.cli.outcome import Outcome

HELP = """Draw a comparison as a Perfetto trace: a lane for each rank and side, pairs joined by flows, differences coloured.

Open FILE at ui.perfetto.dev, which shows it without sending it anywhere; search for `pivot` or `differs`."""


def timeline(
    comparison: str = typer.Argument(..., metavar="COMPARISON", help="An id of `list_runs`, or a result folder."),
    out: str = typer.Option(..., metavar="FILE", help="File to write, such as case.pftrace."),
    steps: str = typer.Option("", metavar="A:B", help="Show these steps, B not included; without, those around the first difference."),
    as_json: bool = typer.Option(False, "--json", help="Print what it shows as one JSON object."),
) -> Outcome:
    """Write the file and say what is in it."""
    from opguard_harness.compare.request import steps_of
    from opguard_harness.report.escape import terminal
    from opguard_harness.workspace.timeline.drawing import write_timeline

    path = Path(out).expanduser()
    drawn = write_timeline(comparison, path, steps_of(steps, "--steps"))
    if as_json:
        told = {name: value for name, value in vars(drawn).items() if name != "found"}
        return Outcome(dumps({"schema": 1, "path": path, "bytes": path.stat().st_size, **told}))
    ranks = f"{len(drawn.ranks)} {'rank' if len(drawn.ranks) == 1 else 'ranks'}"
    lines = [
        f"{terminal(str(path))}: steps {drawn.steps[0]} to {drawn.steps[1] - 1}, {ranks}, {path.stat().st_size >> 10} KiB",
        f"{drawn.boundaries} boundaries, {drawn.pairs} pairs, {drawn.differing} of them differ",
    ]
    if drawn.boundaries < drawn.total:
        lines.append(f"{drawn.total - drawn.boundaries} boundaries of these steps are left out; name fewer steps with --steps")
    if drawn.ranks_left_out:
        lines.append(f"{drawn.ranks_left_out} rank pairs are left out")
    lines.append("the pivot is marked `PIVOT`" if drawn.pivot else "no first difference lies in these steps")
    return Outcome("\n".join(lines))
