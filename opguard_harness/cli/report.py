"""`report`: the report of a case as Markdown, JSON and one HTML page; or whether one that was written still holds."""

from __future__ import annotations

from pathlib import Path

import typer

from opguard_harness.answer.plain import dumps
from opguard_harness.cli.outcome import Outcome

HELP = """Write the report of a case, or check one: report.html (one page that works offline), report.md and report.json.

\b
opguard-harness report case-0123456789ab
opguard-harness report case-0123456789ab --out ~/for-review
opguard-harness report case-0123456789ab --check

Everything that it quotes is read from the stored traces, or computed from them, again; what does not hold is named, and no report is
written (exit code 2)."""


def report(
    case: str = typer.Argument(..., metavar="CASE", help="Id of the case, as `open_case` gives it."),
    comparison: str = typer.Option("", metavar="ID", help="Comparison to report; by default the case's newest."),
    out: str = typer.Option("", metavar="DIR", help="Folder for the files; by default the case's own."),
    check: bool = typer.Option(False, "--check", help="Write nothing: hold the files that are there against what is stored now."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
) -> Outcome:
    """Write or check, and say what was done."""
    from opguard_harness.report.escape import terminal

    folder = Path(out).expanduser().absolute() if out else None
    if check:
        from opguard_harness.workspace.cases import require_case
        from opguard_harness.workspace.reporting.files import check_written

        found = check_written(require_case(case), folder)
        told = {"schema": 1, "holds": True, "case": case, "comparison": found["comparison"]["id"], "written": found["written"]}
        said = f"the report of {terminal(case)} holds: every value in it is what the stored records give now"
        return Outcome(dumps(told) if as_json else said)
    from opguard_harness.tools.reports import WriteReportArguments, write_report

    result = write_report(WriteReportArguments(case, comparison=comparison), folder)
    if as_json:
        return Outcome(dumps({"schema": 1, **vars(result)}))
    paths = (result.page["path"], result.path, result.data["path"], result.timeline.get("path", ""))
    return Outcome("\n".join([result.summary, terminal(result.text), *(f"  {terminal(path)}" for path in paths if path)]))
