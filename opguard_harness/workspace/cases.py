"""Cases on disk: one folder for one investigation, found again by its root folder.

    cases/<id>/case.json      symptom, root, jobs that were started for it
    cases/<id>/findings.json  what was found out (``workspace.findings``)
    cases/<id>/filters.json   benign filters of this case alone (``workspace.filter_file``)
    cases/<id>/report.md      the last report

Every change is made under the lock of the case, so that two servers on one state folder agree. Standard library only.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from opguard_harness.access.opened import MARK
from opguard_harness.config import now, private_dir, state_dir
from opguard_harness.errors import CaseDamaged, CaseNotFound, OpenedReadOnly
from opguard_harness.interface.declaration import Next
from opguard_harness.workspace.documents import locked, read_document, write_document

FORMAT = 1
MAX_BYTES = 8 << 20
MAX_JOBS = 20_000
SYMPTOM_CHARS = 2_000
_CASE = re.compile(r"case-[0-9a-f]{12}")
_JOB = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,119}")
_KNOWN_SHOWN = 5
_KEYS = {"format": int, "id": str, "symptom": str, "root": str, "created": str, "jobs": list}


@dataclass(frozen=True)
class Noted:
    """A job that was started for a case; its id is also that of the run or comparison it makes."""

    job: str
    noted: str


@dataclass(frozen=True)
class Case:
    """One investigation.

    Attributes:
        id: ``case-<12 hex>``, from root and symptom.
        symptom: What goes wrong, redacted; it is what somebody typed.
        root: Folder of the programs in question.
        created: UTC, ISO 8601.
        jobs: Jobs noted, oldest first.
    """

    id: str
    symptom: str
    root: Path
    created: str
    jobs: tuple[Noted, ...] = ()

    @property
    def folder(self) -> Path:
        """Where it lies."""
        return case_folder(self.id)

    @property
    def is_opened(self) -> bool:
        """Whether it came out of a pack, so that it is read only."""
        return os.path.lexists(self.folder / MARK)


def cases_dir() -> Path:
    """Where all cases lie; not created here."""
    return state_dir() / "cases"


def is_case(text: str) -> bool:
    """Whether a text has the form of a case's id."""
    return bool(_CASE.fullmatch(text))


def case_folder(case: str) -> Path:
    """The folder of a case; not looked for.

    Raises:
        CaseNotFound: That is no id of a case.
    """
    if not is_case(case):
        raise _unknown(case)
    return cases_dir() / case


def require_case(case: str) -> Case:
    """A case by its id.

    Raises:
        CaseNotFound: There is none.
        CaseDamaged: Its file is not what we wrote.
    """
    found = _read(case_folder(case))
    if found is None:
        raise _unknown(case)
    return found


def require_writable(case: str) -> Case:
    """A case by its id, to which something is to be added.

    Raises:
        CaseNotFound: There is none.
        CaseDamaged: Its file is not what we wrote.
        OpenedReadOnly: It came out of a pack.
    """
    found = require_case(case)
    if found.is_opened:
        raise OpenedReadOnly(f"{case} came out of a pack: it is read, and nothing is added to it.")
    return found


def all_cases() -> tuple[list[Case], list[str]]:
    """All cases, newest first, and the ids of those whose file is damaged."""
    found, damaged = [], []
    for name in _ids():
        try:
            case = _read(cases_dir() / name)
        except CaseDamaged:
            damaged.append(name)
            continue
        found += [case] if case else []
    return sorted(found, key=lambda case: (case.created, case.id), reverse=True), damaged


def open_or_resume(root: Path, symptom: str, *, another: bool = False) -> tuple[Case, bool]:
    """The newest case of a root; a new one where it has none.

    Args:
        root: Absolute folder; links are followed, so that one folder has one name.
        symptom: What goes wrong, redacted.
        another: Do not resume a case with another symptom.

    Returns:
        The case, and whether it was there before.

    Raises:
        CaseDamaged: The case that is meant has a file that we did not write.
    """
    root, symptom = Path(os.path.realpath(root)), symptom[:SYMPTOM_CHARS]
    private_dir(state_dir())
    base = private_dir(cases_dir())
    with locked(base / "cases"):
        same = [case for case in all_cases()[0] if case.root == root and not case.is_opened and (not another or case.symptom == symptom)]
        if same:
            return same[0], True
        name = _id_of(root, symptom)
        present = _read(base / name)  # a damaged file is an error here, and is not written over
        if present is not None:
            return present, True
        case = Case(name, symptom, root, now())
        private_dir(case.folder)
        _write(case)
    return case, False


def note_job(case: str, job: str) -> None:
    """Note a job in its case; noting it again changes nothing.

    Args:
        case: Id of a case; empty notes nothing.
        job: Id of the job, and of the run or comparison that it makes.

    Raises:
        CaseNotFound: There is no such case.
        CaseDamaged: Its file is not what we wrote; it stays as it is.
        OpenedReadOnly: It came out of a pack.
    """
    if not case:
        return
    if not _JOB.fullmatch(job):
        raise ValueError(f"{job!r} is no id of a job")
    path = case_folder(case) / "case.json"
    require_writable(case)
    with locked(path):
        before = require_case(case)
        if any(item.job == job for item in before.jobs):
            return
        if len(before.jobs) >= MAX_JOBS:
            hint = "Open another case for this folder: `open_case` with case 'new'."
            raise CaseDamaged(f"{case} has {MAX_JOBS} jobs already.", hint=hint)
        _write(Case(before.id, before.symptom, before.root, before.created, (*before.jobs, Noted(job, now()))))


def _ids() -> list[str]:
    """Ids of the folders that may hold a case."""
    try:
        with os.scandir(cases_dir()) as entries:
            return sorted(entry.name for entry in entries if is_case(entry.name) and entry.is_dir(follow_symlinks=False))
    except FileNotFoundError:
        return []


def _id_of(root: Path, symptom: str) -> str:
    return f"case-{hashlib.sha256(os.fsencode(root) + bytes(1) + symptom.encode('utf-8', 'surrogatepass')).hexdigest()[:12]}"


def _unknown(case: str) -> CaseNotFound:
    known = [item.id for item in all_cases()[0]]
    said = f"The newest: {', '.join(known[:_KNOWN_SHOWN])}." if known else "There is none yet."
    close = get_close_matches(case[:60], known, n=1) or known[:1]
    calls = [Next("open_case", {"case": close[0]} if close else {}, "the closest one" if close else "open one")]
    return CaseNotFound(f"There is no case {case[:60]!r}. {said}", next=calls)


def write_case(case: Case, folder: Path) -> None:
    """Write the file of a case into a folder."""
    document = {
        "format": FORMAT,
        "id": case.id,
        "symptom": case.symptom,
        "root": str(case.root),
        "created": case.created,
        "jobs": [{"job": item.job, "noted": item.noted} for item in case.jobs],
    }
    write_document(folder / "case.json", document)


def _write(case: Case) -> None:
    write_case(case, case.folder)


def _read(folder: Path) -> Case | None:
    """The case of a folder; None where it has none."""
    return read_case(folder / "case.json", folder.name)


def read_case(path: Path, name: str) -> Case | None:
    """The case that a file holds; None where there is no file.

    Args:
        path: The file.
        name: Id that it has to name.

    Raises:
        CaseDamaged: It is not the file of that case.
    """
    document = read_document(path, MAX_BYTES, CaseDamaged)
    if document is None:
        return None
    check_format(path, document, _KEYS)
    jobs = []
    for item in document["jobs"]:
        whole = isinstance(item, dict) and item.keys() == {"job", "noted"} and all(isinstance(value, str) for value in item.values())
        if not whole or not _JOB.fullmatch(item["job"]):
            raise CaseDamaged(f"{path}: {str(item)[:80]!r} is no note of a job.")
        jobs.append(Noted(item["job"], item["noted"]))
    if document["id"] != name or not document["root"].startswith("/") or len(jobs) > MAX_JOBS:
        raise CaseDamaged(f"{path} is not the file of {name}: it names {document['id'][:40]!r} of {document['root'][:80]!r}.")
    return Case(document["id"], document["symptom"][:SYMPTOM_CHARS], Path(document["root"]), document["created"], tuple(jobs))


def check_format(path: Path, document: dict[str, Any], keys: dict[str, type]) -> None:
    """Refuse a document of a case that has not exactly these keys, or another format.

    Raises:
        CaseDamaged: It has not.
    """
    if document.get("format") != FORMAT or type(document["format"]) is not int:
        found = str(document.get("format"))[:40]
        raise CaseDamaged(f"{path} has format {found}; this release reads {FORMAT}.", hint="Use the release that wrote it.")
    if document.keys() != keys.keys():
        raise CaseDamaged(f"{path} has keys {', '.join(sorted(document))[:120]}; expected {', '.join(sorted(keys))}.")
    wrong = [name for name, kind in keys.items() if type(document[name]) is not kind]
    if wrong:
        raise CaseDamaged(f"{path}: {wrong[0]} is {type(document[wrong[0]]).__name__} and not {keys[wrong[0]].__name__}.")
