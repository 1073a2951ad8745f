"""Opening a pack: everything is checked in a folder of its own, and only then given its place, the case last.

What is opened is marked (`access.opened`), so that nothing in it is started and nothing is added to it. Result folders keep their ids,
since evidence names them; what is stored here under the same id has to be the same, or the pack is refused.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from opguard_core.errors import OpGuardError
from opguard_core.ids import SIDES
from opguard_core.trace.files import read_checked, sync_directory
from opguard_core.trace.identity import trace_digest
from opguard_core.trace.sources import SOURCES_NAME, read_source
from opguard_harness.access.opened import MARK, Opened, opened
from opguard_harness.access.rules import current
from opguard_harness.answer.schema import checked
from opguard_harness.config import MIN_FREE_BYTES, private_dir, runs_dir, state_dir
from opguard_harness.errors import CaseDamaged, PackConflict, PackDamaged, SpaceShort
from opguard_harness.workspace.cases import Case, cases_dir, read_case, require_case, write_case
from opguard_harness.workspace.documents import locked, read_document, write_document
from opguard_harness.workspace.filter_file import read_filters
from opguard_harness.workspace.findings import MAX_BYTES as FINDINGS_BYTES
from opguard_harness.workspace.findings import read_findings
from opguard_harness.workspace.packs.checking import CheckedPack, check
from opguard_harness.workspace.packs.pages import drop_strange_page
from opguard_harness.workspace.stored import ANSWER_FILE, MAX_ANSWER_BYTES

_DRAFT = ".opening-"
_UNAPPROVED = "filters.unapproved.json"


@dataclass(frozen=True)
class OpenedCase:
    """A case that came out of a pack.

    Attributes:
        case: It, under an id of its own.
        pack: Digest of the pack's list.
        of: Its id where it was packed.
        sources: Whether source texts came with it.
        comparisons: Ids of its comparisons.
        filters: Filters that came with it: those of its file and those that its answers rest on.
        approved: Whether they are in force.
        left_out: What the pack says was left out, and what was not taken from it.
        left_out_total: How many things were.
        new: It was not here before.
    """

    case: Case
    pack: str
    of: str
    sources: bool
    comparisons: list[str]
    filters: list[dict[str, Any]]
    approved: bool
    left_out: list[dict[str, str]]
    left_out_total: int
    new: bool


def open_pack(path: Path, *, approve_filters: bool = False) -> OpenedCase:
    """Open a pack as a case of its own; opening it again gives the same one.

    Args:
        path: The file.
        approve_filters: Put the filters that came with it in force; once they are, they stay so.

    Raises:
        PackDamaged: It is no pack, or not what was packed; nothing of it is kept.
        PackConflict: Something else is stored here under an id of it.
        SpaceShort: It does not fit.

    Cost: reads the file twice and writes what is in it once.
    """
    private_dir(state_dir())
    private_dir(cases_dir())
    runs = private_dir(runs_dir())
    with _file(path) as file, locked(runs / "packs"):
        for left in state_dir().glob(f"{_DRAFT}*"):  # of somebody who was killed: whoever makes one holds this lock
            shutil.rmtree(left, ignore_errors=True)
        pack = check(file)
        if pack.size + MIN_FREE_BYTES > shutil.disk_usage(runs).free:
            raise SpaceShort(f"The pack needs {pack.size >> 20} MiB at {runs}.", hint="Free some space, or set XDG_STATE_HOME.")
        draft = Path(tempfile.mkdtemp(prefix=_DRAFT, dir=state_dir()))
        try:
            pack.take_out(draft)
            return _settle(pack, draft, _Content.of(pack, draft), approve=approve_filters)
        finally:
            shutil.rmtree(draft, ignore_errors=True)


@dataclass(frozen=True)
class _Content:
    """What a pack means, once all of it was read as what it says it is."""

    case: Case
    findings: dict[str, Any] | None
    answers: dict[str, dict[str, Any]]
    filters: list[dict[str, Any]]
    dropped: list[dict[str, str]]

    @classmethod
    def of(cls, pack: CheckedPack, draft: Path) -> _Content:
        """Read the documents, answers, traces and source texts.

        Raises:
            PackDamaged: One of them is not what we write.
        """
        of = pack.manifest.case
        folder = draft / "case"
        try:
            case = read_case(folder / "case.json", of)
            if case is None:
                raise PackDamaged("The pack holds no case.")
            read_findings(folder / "findings.json", of)
            findings = read_document(folder / "findings.json", FINDINGS_BYTES, CaseDamaged)
            rules = [rule.as_dict() for rule in read_filters(folder / "filters.json")]
            with_answer = [name for name in pack.manifest.runs if (draft / "runs" / name / ANSWER_FILE).exists()]
            answers = {name: _answer(draft / "runs" / name / ANSWER_FILE) for name in {*with_answer, *pack.manifest.traces}}
            for trace in dict.fromkeys(place for sides in pack.manifest.traces.values() for place in sides.values()):
                _check_trace(draft / trace)
            for name, places in pack.manifest.traces.items():
                _check_digests(name, answers[name], {side: draft / places[side] for side in SIDES})
        except PackDamaged:
            raise
        except OpGuardError as error:
            raise PackDamaged(f"The pack holds what is not as we write it: {error.message}") from error
        used = [rule for answer in answers.values() for rule in answer["filters"]]
        distinct = {str(rule["id"]): rule for rule in [*rules, *used]}
        return cls(case, findings, answers, list(distinct.values()), drop_strange_page(folder))


@contextmanager
def _file(path: Path) -> Iterator[Any]:
    """The file, opened so that neither a pipe nor a device is waited for."""
    real = Path(os.path.realpath(current().path(path, "pack")))
    try:
        descriptor = os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise PackDamaged(f"{real} cannot be opened: {error.strerror}.", hint="Name a file that `opguard-harness pack` made.") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise PackDamaged(f"{real} is no file.", hint="Name a file that `opguard-harness pack` made.")
    with os.fdopen(descriptor, "rb") as file:
        yield file


def _answer(path: Path) -> dict[str, Any]:
    """An answer, held against its schema."""
    import json

    try:
        return checked(json.loads(read_checked(path, limit=MAX_ANSWER_BYTES)))
    except (ValueError, RecursionError) as error:
        raise PackDamaged(f"{path.parent.name} has an answer that is no JSON.") from error


def _check_trace(trace: Path) -> None:
    """A trace opens, and its source texts are what their names say."""
    from opguard_core.trace.reader import Run

    Run.open(trace)
    folder = trace / SOURCES_NAME
    for text in folder.iterdir() if folder.is_dir() else ():
        read_source(folder, text.name.split(".")[0])


def _check_digests(name: str, answer: dict[str, Any], traces: dict[str, Path]) -> None:
    """An answer's traces are those that it was given about."""
    for side, promised in answer.get("digests", {}).items():
        found = trace_digest(traces[side])
        if found != promised:
            raise PackDamaged(f"{name} is about another {side}: trace {str(promised)[:12]}, and the pack holds {found[:12]}.")


def _settle(pack: CheckedPack, draft: Path, content: _Content, *, approve: bool) -> OpenedCase:
    """Give everything its place; the case comes last, so that it is there only when the rest is."""
    manifest = pack.manifest
    name = f"case-{hashlib.sha256(f'opened {pack.digest}'.encode('ascii')).hexdigest()[:12]}"
    before = opened(cases_dir() / name)
    approved = approve or (before is not None and before.approved)
    left_out_total = manifest.left_out_total + len(content.dropped)
    mark = Opened(pack.digest, name, manifest.case, manifest.sources, {}, approved, left_out_total)
    for run in manifest.runs:
        _check_place(draft / "runs" / run, runs_dir() / run, run)
    for run in manifest.runs:
        _place(draft / "runs" / run, runs_dir() / run, replace(mark, traces=manifest.traces.get(run, {})))
    _place_case(draft, cases_dir() / name, content, mark)
    return OpenedCase(
        require_case(name),
        pack.digest,
        manifest.case,
        manifest.sources,
        sorted(content.answers),
        content.filters,
        approved,
        [*content.dropped, *manifest.left_out],
        left_out_total,
        before is None,
    )


def _check_place(source: Path, target: Path, name: str) -> None:
    """What is there under that id, if anything is, is the same.

    Raises:
        PackConflict: It is not.
    """
    if not os.path.lexists(target):
        return
    brought, there = ({path.relative_to(folder) for path in _files(folder)} for folder in (source, target))
    for path in sorted(brought & there):
        if not _same(source / path, target / path):
            raise PackConflict(f"{name} is stored here already, and its {path} is not that of the pack.")
    apart = brought ^ there if (target / MARK).exists() else brought - there  # what was made here has logs as well
    odd = next((path for path in sorted(apart) if path.parent.name != SOURCES_NAME), None)
    if odd is not None:
        raise PackConflict(f"{name} is stored here already, and {odd} is not in both.")


def _place(source: Path, target: Path, mark: Opened) -> None:
    """Move a result folder to its place, or add to the one that another pack has brought what that did not have."""
    if not target.exists():
        write_document(source / MARK, mark.as_dict())
        try:
            source.rename(target)
        except OSError as error:
            raise PackConflict(f"{target.name} came to be here while the pack was opened.", hint="Open the pack again.") from error
        sync_directory(target.parent)
        return
    held = opened(target)
    if held is None:
        return  # made here: it stays as it is
    for path in _files(source):
        there = target / path.relative_to(source)
        if not there.exists():
            there.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.rename(there)
    merged = replace(held, traces=held.traces or mark.traces, approved=held.approved or mark.approved, sources=held.sources or mark.sources)
    if merged != held:
        write_document(target / MARK, merged.as_dict())


def _place_case(draft: Path, target: Path, content: _Content, mark: Opened) -> None:
    """The case's folder, under its new id."""
    folder = draft / "case"
    case = content.case
    write_case(replace(case, id=mark.case), folder)
    if content.findings is not None:
        write_document(folder / "findings.json", {**content.findings, "case": mark.case})
    if (folder / "filters.json").exists() and not mark.approved:
        (folder / "filters.json").rename(folder / _UNAPPROVED)
    write_document(folder / MARK, mark.as_dict())
    if (draft / "jobs").exists():
        (draft / "jobs").rename(folder / "jobs")
    if not target.exists():
        folder.rename(target)
    elif mark.approved:  # opened before: what changes is that its filters are in force
        if (target / _UNAPPROVED).exists():
            (target / _UNAPPROVED).rename(target / "filters.json")
        write_document(target / MARK, mark.as_dict())
    sync_directory(target.parent)


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MARK)


def _same(one: Path, other: Path) -> bool:
    """Whether two files are byte for byte the same; a link is another one."""
    if other.is_symlink() or not other.is_file() or one.stat().st_size != other.stat().st_size:
        return False
    with one.open("rb") as left, other.open("rb") as right:
        while chunk := left.read(1 << 20):
            if right.read(1 << 20) != chunk:
                return False
    return True


__all__ = ["OpenedCase", "open_pack"]
