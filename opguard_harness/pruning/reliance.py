"""What cases and filters rely on: results they note, cite or report. Standard library only.

A case that cannot be seen or read relies on nobody knows what, so it keeps everything. Evidence that resolves to nothing any more
keeps nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NoReturn

from opguard_harness.errors import CaseDamaged
from opguard_harness.interface.declaration import Next
from opguard_harness.pruning.holders import Holders, result_named
from opguard_harness.workspace.cases import Case, cases_dir, is_case, require_case
from opguard_harness.workspace.filter_file import filter_path, read_filters
from opguard_harness.workspace.findings import findings_of
from opguard_harness.workspace.listing import json_object


def noted(holders: Holders) -> dict[str, str]:
    """Ids of results that cases, their findings and reports, and filters rely on, each with who does.

    Returns:
        As ``{"compare-0123456789ab": "case-0123456789ab notes it"}``.

    Raises:
        CaseDamaged: What a case relies on cannot be read, so nobody knows what may go.
        FiltersDamaged: The same of a filter file.
    """
    found: dict[str, str] = {}
    for case in _cases():
        for note in case.jobs:
            found.setdefault(note.job, f"{case.id} notes it")
        for finding in findings_of(case.id):
            _cite(found, holders, (cited.id for cited in finding.evidence), f"a finding of {case.id} cites it")
        reported = _reported(case)
        if reported:
            found.setdefault(reported, f"the report of {case.id} is about it")
        _filters(found, holders, case.folder / "filters.json")
    _filters(found, holders, filter_path(""))
    return found


def _cases() -> Iterator[Case]:
    """Every case; an entry with a case's name is one, whatever it is."""
    base = cases_dir()
    if not os.path.lexists(base):
        return
    try:
        names = sorted(path.name for path in base.iterdir() if is_case(path.name))
    except OSError as error:
        _refuse(base, error.strerror)
    for name in names:
        folder = base / name
        try:
            written = [path for path in folder.iterdir() if not path.name.startswith(".")]  # else a lock, or a file half written
        except OSError as error:
            _refuse(folder, error.strerror)
        if folder.is_symlink():
            _refuse(folder, "a link")
        if written:
            yield _case(name, folder)


def _case(name: str, folder: Path) -> Case:
    try:
        if os.path.lexists(folder / "case.json"):
            return require_case(name)
    except CaseDamaged as error:
        _refuse(folder, error.message, name)
    _refuse(folder, "it has no case.json", name)


def _refuse(path: Path, why: str | None, case: str = "") -> NoReturn:
    raise CaseDamaged(
        f"{path} cannot be read, so nobody can say what it relies on; nothing is removed. ({why})",
        hint=f"Look at {path}; move it out of {cases_dir()} to give it up.",
        next=[Next("open_case", {"case": case}, "what is wrong with it")] if case else [],
    )


def _reported(case: Case) -> str:
    """Id of the comparison that the report in a case's folder is about; empty without one."""
    about = json_object(case.folder / "report.json").get("comparison")
    told = about.get("id") if isinstance(about, dict) else None
    return result_named(told) if isinstance(told, str) else ""


def _filters(found: dict[str, str], holders: Holders, path: Path) -> None:
    for rule in read_filters(path):
        _cite(found, holders, rule.evidence, f"the filter {rule.id} cites it")


def _cite(found: dict[str, str], holders: Holders, evidence: Iterable[str], why: str) -> None:
    for item in evidence:
        for holder in holders.of(item):
            found.setdefault(holder, why)
