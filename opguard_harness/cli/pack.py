"""`pack` and `open`: a case as one file, and such a file as a case that is read only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from opguard_harness.answer.plain import dumps
from opguard_harness.cli.outcome import Outcome

PACK_HELP = """Write a case into one zip: findings, reports, answers, the traces they rest on and kept tensors, behind a list of digests.

Source texts go with it only with --include-sources; the expressions and paths that traces and answers name are in it anyway. The output of
programs is never in it. The same case gives the same bytes."""
OPEN_HELP = """Open a pack as a case of its own: every digest is checked before anything is used; nothing that it records is ever started.

The case is read only: `write_report`, `first_difference`, `get_evidence` and `show_source` work on it. Filters that came with it are off
until you have read them and open it with --approve-filters. A pack is not signed: compare its sha256 with what its maker tells you."""
_SHOWN = 20


def pack(
    case: str = typer.Argument(..., metavar="CASE", help="Id of the case."),
    out: str = typer.Option(..., metavar="FILE", help="File to write, such as case.zip; it may not exist yet."),
    include_sources: bool = typer.Option(False, "--include-sources", help="Pack the source texts that the runs executed, as they are."),
    as_json: bool = typer.Option(False, "--json", help="Print what is in it as one JSON object."),
) -> Outcome:
    """Write the pack and say what is in it."""
    from opguard_harness.report.escape import terminal
    from opguard_harness.workspace.packs.writing import pack as write_pack

    made = write_pack(case, Path(out).expanduser(), sources=include_sources)
    listed = made.manifest
    if as_json:
        told = {"path": made.path, "bytes": made.bytes, "sha256": made.sha256, "case": listed.case, "sources": listed.sources}
        return Outcome(
            dumps({"schema": 1, **told, "files": len(listed.files), "left_out": listed.left_out, "left_out_total": listed.left_out_total})
        )
    lines = [
        f"{terminal(str(made.path))}: {len(listed.files)} files, {made.bytes >> 10} KiB",
        f"sha256 {made.sha256}",
        *_left_out(list(listed.left_out), listed.left_out_total),
    ]
    return Outcome("\n".join(lines))


def open_(
    file: str = typer.Argument(..., metavar="FILE", help="A pack."),
    approve_filters: bool = typer.Option(False, "--approve-filters", help="Put the filters that came with it in force."),
    as_json: bool = typer.Option(False, "--json", help="Print what is in it as one JSON object."),
) -> Outcome:
    """Open the pack and say what is in it."""
    from opguard_harness.report.escape import terminal
    from opguard_harness.workspace.packs.opening import open_pack

    found = open_pack(Path(file).expanduser(), approve_filters=approve_filters)
    if as_json:
        told = {name: value for name, value in vars(found).items() if name != "case"}
        return Outcome(dumps({"schema": 1, "case": found.case.id, "symptom": found.case.symptom, **told}))
    lines = [
        f"{'opened' if found.new else 'opened before'}: {found.case.id}, which was {found.of}; read only, every digest checked",
        f"symptom: {terminal(found.case.symptom) or 'none was told'}",
        f"comparisons: {', '.join(found.comparisons) or 'none'}",
        "source texts: " + ("in it" if found.sources else "not in it"),
        *_filters(found.filters, found.approved),
        *_left_out(found.left_out, found.left_out_total),
    ]
    return Outcome("\n".join(lines))


def _filters(rules: list[dict[str, Any]], approved: bool) -> list[str]:
    """The filters that came with a pack, to be read before they are approved."""
    from opguard_harness.report.escape import terminal

    if not rules:
        return ["filters: none"]
    lines = [f"filters: {len(rules)} came with it, {'in force' if approved else 'off until you open it with --approve-filters'}"]
    for rule in rules[:_SHOWN]:
        where = next((f"{place['file']} {place['text']}" for side in ("suspect", "reference") if (place := rule.get(side))), "")
        said = " ".join(str(rule[name]) for name in ("id", "operator", "slot"))
        lines.append(f"  {terminal(f'{said} {where}: ' + str(rule['reason']))[:400]}")
    return lines + ([f"  and {len(rules) - _SHOWN} more"] if len(rules) > _SHOWN else [])


def _left_out(items: list[dict[str, str]], total: int) -> list[str]:
    """What was left out of a pack."""
    from opguard_harness.report.escape import terminal

    lines = [f"left out: {terminal(item['what'])}: {terminal(item['why'])}" for item in items[:_SHOWN]]
    return lines + ([f"left out: {total - _SHOWN} more"] if total > _SHOWN else [])
