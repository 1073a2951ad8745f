"""A campaign's record as Markdown."""

from __future__ import annotations

from typing import Any

from tests.faults.injection import truth
from tests.faults.injection.faults import REMOVE

Record = dict[str, Any]


def table(records: list[Record]) -> str:
    """Marks by kind, then by sort of pair and mode."""
    marked = [record for record in records if record["mark"] != "void"]
    rows: list[tuple[str, list[Record]]] = []
    for key in ("kind", "mode"):
        values = sorted({record[key] for record in marked})
        rows += [(value, [record for record in marked if record[key] == value]) for value in values]
    rows += [
        ("one program, two runs", [record for record in marked if record["same_code"]]),
        ("two programs", [record for record in marked if not record["same_code"]]),
        ("one rank of two", [record for record in marked if record["ranks"] > 1]),
        ("**all**", marked),
    ]
    lines = [f"| faults | n | {' | '.join(truth.MARKS)} |", f"|{'---|' * (len(truth.MARKS) + 2)}"]
    for name, chosen in rows:
        counts = [sum(record["mark"] == mark for record in chosen) for mark in truth.MARKS]
        lines.append(f"| {name} | {len(chosen)} | {' | '.join(str(count) for count in counts)} |")
    counted = [record for record in marked if record["kind"] != REMOVE and record["mark"] != truth.ABSORBED]
    exact = sum(record["mark"] == truth.EXACT for record in counted)
    lines += [
        "",
        f"Exact event, of {len(counted)} faults that had an effect and left the operator in place: {_share(exact, len(counted))}.",
    ]
    lines.append(f"Draws that did nothing or ended the process, not counted: {len(records) - len(marked)}.")
    return "\n".join(lines)


def listing(records: list[Record]) -> str:
    """Every fault that was neither exact nor absorbed."""
    lines = ["| # | pair | mode | kind | injected at | answer | mark |", "|---|---|---|---|---|---|---|"]
    for record in records:
        if record["mark"] in (truth.EXACT, truth.ABSORBED, "void"):
            continue
        fault = record["fault"]
        at = f"rank {record['rank']} {fault['operator']} {fault['where']} {record['counterpart']}/{record['placed']}"
        proved = " (absorbed)" if record["absorbed"] else ""
        row = (record["index"], record["pair"], record["mode"], record["kind"], at, record["said"], record["mark"] + proved)
        lines.append(f"| {' | '.join(map(str, row))} |")
    return "\n".join(lines)


def _share(part: int, whole: int) -> str:
    return f"{part} ({100 * part / whole:.1f} %)" if whole else "none"
