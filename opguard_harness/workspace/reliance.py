"""Who relies on a stored result: cases, findings, filters, and other results that rest on it.

Asked before anything is removed. Evidence that resolves to nothing any more keeps nothing. Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from opguard_core.errors import OpGuardError
from opguard_core.evidence.refs import EventRef, JobRef, is_reference, parse
from opguard_core.ids import SIDES
from opguard_harness.config import runs_dir, state_dir
from opguard_harness.errors import CaseDamaged
from opguard_harness.interface.declaration import Next
from opguard_harness.workspace.cases import all_cases, cases_dir
from opguard_harness.workspace.evidence import ARTEFACTS, source_named, trace_named
from opguard_harness.workspace.filter_file import filter_path, read_filters
from opguard_harness.workspace.findings import findings_of
from opguard_harness.workspace.listing import Entry, json_object
from opguard_harness.workspace.stored import ANSWER_FILE


def noted() -> dict[str, str]:
    """Ids of results that cases, findings and filters rely on, each with who does.

    Returns:
        As ``{"compare-0123456789ab": "case-0123456789ab notes it"}``.

    Raises:
        CaseDamaged: What a case relies on cannot be read, so nobody knows what may go.
        FiltersDamaged: The same of a filter file.

    Cost: manifests and indexes of stored traces, if findings or filters cite events.
    """
    cases, damaged = all_cases()
    if damaged:
        raise CaseDamaged(
            f"The file of {damaged[0]} is damaged, so nobody can say what it relies on; nothing is removed.",
            hint=f"Look at {cases_dir() / damaged[0]}; move it elsewhere to give it up.",
            next=[Next("open_case", {"case": damaged[0]}, "what is wrong with it")],
        )
    found: dict[str, str] = {}
    for case in cases:
        for note in case.jobs:
            found.setdefault(note.job, f"{case.id} notes it")
        for finding in findings_of(case.id):
            _cite(found, (cited.id for cited in finding.evidence), f"a finding of {case.id} cites it")
        _filters(found, case.folder / "filters.json")
    _filters(found, filter_path(""))
    return found


def _filters(found: dict[str, str], path: Path) -> None:
    for rule in read_filters(path):
        _cite(found, rule.evidence, f"the filter {rule.id} cites it")


def _cite(found: dict[str, str], evidence: Iterable[str], why: str) -> None:
    for item in evidence:
        holder = _holder(item)
        if holder:
            found.setdefault(holder, why)


def _holder(evidence: str) -> str:
    """Id of the stored result that a record lies in; empty if it lies elsewhere or has gone already."""
    if not is_reference(evidence):  # as a comparison writes it: ``TRACE#rank=0&seq=7``
        trace, marked, _ = evidence.partition("#")
        return holder_of(Path(trace)) if marked and trace else ""
    try:
        reference = parse(evidence)
        if isinstance(reference, JobRef):
            return reference.holder
        return holder_of(trace_named(reference.trace) if isinstance(reference, EventRef) else source_named(reference)[0])
    except OpGuardError:
        return ""


def holder_of(path: Path) -> str:
    """Id of the stored result that a path lies in; empty if it lies outside of the folder of runs."""
    base = runs_dir().resolve()
    resolved = path.resolve()
    return resolved.relative_to(base).parts[0] if resolved != base and resolved.is_relative_to(base) else ""


def resting(rows: Iterable[Entry], kept: dict[str, str]) -> dict[str, str]:
    """What stays because something else that stays rests on it, or it says more about that.

    Args:
        rows: All that is stored.
        kept: Ids that stay, with the reason.

    Returns:
        More of them: traces that a comparison which stays has paired, and replays of it.
    """
    every = list(rows)
    compared = {row.id: [part for part in _paired(row) if part != row.id] for row in every}
    replayed = {row.id: confirmed for row in every if row.kind == "confirm" and (confirmed := _confirmed(row))}
    found = dict(kept)
    while True:
        more = {part: f"{row} compares it" for row, parts in compared.items() if row in found for part in parts}
        more |= {row: f"it replays {about}" for row, about in replayed.items() if about in found}
        more |= {about: f"{row} replays it" for row, about in replayed.items() if row in found}
        fresh = {name: why for name, why in more.items() if name not in found}
        if not fresh:
            return found
        found |= fresh


def _paired(row: Entry) -> Iterator[str]:
    """Ids of the stored results whose traces a comparison is about."""
    traces = {} if row.path is None else json_object(row.path / ANSWER_FILE).get("trace")
    for side in SIDES:
        trace = traces.get(side) if isinstance(traces, dict) else None
        if isinstance(trace, str) and trace and (holder := holder_of(Path(trace))):
            yield holder


def _confirmed(row: Entry) -> str:
    """Id of the comparison that a replay is about; empty if nobody knows."""
    told = json_object(state_dir() / "jobs" / row.id / ARTEFACTS["result"]).get("result")
    about = told.get("confirms") if isinstance(told, dict) else None
    if not isinstance(about, str):
        return ""
    return holder_of(Path(about)) if "/" in about else about
