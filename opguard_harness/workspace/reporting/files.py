"""The report's three files: made from one object that was checked, written together, and checked again when asked."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from opguard_core.errors import OpGuardError
from opguard_core.trace.files import read_checked, sync_directory, write_atomic
from opguard_harness.access.rules import current
from opguard_harness.access.untrusted import one_line
from opguard_harness.answer.plain import dumps
from opguard_harness.answer.schema import checked_report
from opguard_harness.answer.validate import faults
from opguard_harness.config import now
from opguard_harness.errors import ReportRefused
from opguard_harness.interface.declaration import Evidence, Next
from opguard_harness.report.markdown_page import case_page
from opguard_harness.report.page import html_page
from opguard_harness.workspace.case_report import CheckedVerdict, check_findings, check_verdict
from opguard_harness.workspace.cases import Case
from opguard_harness.workspace.documents import locked, once
from opguard_harness.workspace.findings import Finding, findings_of
from opguard_harness.workspace.reporting.model import report_model
from opguard_harness.workspace.reporting.recheck import unchecked
from opguard_harness.workspace.reporting.rejudged import differences, rejudged

NAMES = ("report.json", "report.html", "report.md")
"""In the order they are written: whoever finds the last one finds all."""

TIMELINE = "timeline.pftrace"
MAX_BYTES = 64 << 20
_NAMED = 5
_FAILED = "The report does not hold"


@dataclass(frozen=True)
class Gathered:
    """A report before it is written.

    Attributes:
        model: The one object.
        checked: The answer it is about.
        findings: Each with what it cites now.
    """

    model: dict[str, Any]
    checked: CheckedVerdict
    findings: list[tuple[Finding, list[Evidence]]]


@dataclass(frozen=True)
class Written:
    """A report that was written: by name of a file its path and digest; ``note`` says why a timeline is missing."""

    paths: dict[str, Path]
    digests: dict[str, str]
    note: str = ""


def gather(case: Case, comparison: str, written: str = "") -> Gathered:
    """Check verdict and findings, and make the object.

    Args:
        case: The case.
        comparison: The comparison to report.
        written: When, in UTC; now by default.

    Raises:
        ReportRefused: Something does not hold; it is named.
    """
    checked = check_verdict(comparison)
    checked = replace(checked, answer=rejudged(comparison, checked.answer))
    findings = check_findings([item for item in findings_of(case.id) if not item.withdrawn], case.id)
    return Gathered(checked_report(report_model(case, checked, findings, written or now())), checked, findings)


def write(case: Case, gathered: Gathered, out: Path | None = None) -> Written:
    """Check the object once more, lay it out, and put all files where they belong.

    Args:
        case: The case.
        gathered: Its report.
        out: Folder to write to, made if it is not there; by default the case's own.

    Raises:
        ReportRefused: The object says what the records do not.
    """
    _require(list(islice(unchecked(gathered.model), _NAMED)), "No report was written")
    contents = laid_out(gathered.model)
    drawn, note = _timeline(gathered.checked.answer)
    contents = {**drawn, **contents}
    folder = case.folder if out is None else out
    if out is not None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with locked(case.folder / NAMES[-1]):
        if TIMELINE not in contents:  # one of another report would be taken for this one's
            (folder / TIMELINE).unlink(missing_ok=True)
        for name, data in contents.items():
            write_atomic(folder / name, data)
        sync_directory(folder)
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in contents.items()}
    return Written({name: folder / name for name in contents}, digests, note)


def _timeline(answer: dict[str, Any]) -> tuple[dict[str, bytes], str]:
    """The timeline of a comparison by the name of its file, or why there is none; a report is whole without it."""
    from opguard_harness.workspace.timeline.drawing import timeline

    try:
        return {TIMELINE: timeline(answer)[0]}, ""
    except OpGuardError as error:
        return {}, f"No timeline: {error.message}"


def laid_out(model: dict[str, Any]) -> dict[str, bytes]:
    """The three files of an object; the same object gives the same bytes."""
    return {
        "report.json": f"{dumps(model, indent=1)}\n".encode("ascii"),
        "report.html": html_page(model).encode("utf-8"),
        "report.md": case_page(model).encode("utf-8"),
    }


def check_written(case: Case, folder: Path | None = None) -> dict[str, Any]:
    """Hold written files against what is stored now.

    Args:
        case: The case.
        folder: Where they lie; by default the case's own folder.

    Returns:
        The object in report.json, of which every value holds.

    Raises:
        ReportRefused: A file is not there, or says what the records do not; file and value are named.
    """
    folder = case.folder if folder is None else folder
    files = {name: _read(folder / name) for name in NAMES}
    try:
        model = json.loads(files["report.json"], object_pairs_hook=once)
        wrong = faults(model, _schema())
    except (ValueError, RecursionError) as error:
        wrong = [str(error)]
    _require([f"report.json: {one_line(item, 200)}" for item in wrong[:_NAMED]], _FAILED)
    _require([f"report.json: {item}" for item in islice(unchecked(model), _NAMED)], _FAILED)
    fresh = gather(case, model["comparison"]["id"], model["written"])
    apart = list(islice(differences(model, {**fresh.model, "tool": model["tool"]}, "report"), _NAMED))
    _require(
        [f"report.json: {path} is {_brief(then)}, and the records give {_brief(found)}" for path, then, found in apart],
        "The report does not hold",
    )
    for name, data in laid_out(model).items():
        if data != files[name]:
            _require([f"{name} is not what report.json says"], _FAILED)
    if (folder / TIMELINE).exists():
        drawn, _ = _timeline(fresh.checked.answer)  # nothing where the package that draws it is not installed
        if drawn.get(TIMELINE, b"") not in (b"", _read(folder / TIMELINE)):
            _require([f"{TIMELINE} is not what the traces give"], _FAILED)
    return dict(model)


def _schema() -> dict[str, Any]:
    from opguard_harness.answer.schema import report_schema

    return report_schema()


def _read(path: Path) -> bytes:
    found = current().path(path, "report")
    if not found.is_file():
        raise ReportRefused(f"{path} is not there.", hint="`write_report` writes it.")
    return read_checked(found, limit=MAX_BYTES)


def _require(wrong: Sequence[str], said: str) -> None:
    if wrong:
        calls = [Next("list_runs", {"kind": "compare"}, "another comparison, or the sides to compare again")]
        raise ReportRefused(f"{said}: {'; '.join(wrong)}.", hint="Write the report again from what is stored now.", next=calls)


def _brief(value: Any) -> str:
    return one_line(repr(value), 60)
