"""What goes into a pack: the case, what was compared and confirmed for it, and every trace that those and its findings rest on.

Files are found below the state folder, or below a trace that a comparison names and that the call may touch; no link is followed.
What stays out is named, with the reason.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

from opguard_core.errors import OpGuardError
from opguard_core.evidence.refs import EventRef, JobRef, SourceRef, is_holder, parse
from opguard_core.ids import SIDES
from opguard_core.plan.redact import redact_text
from opguard_core.trace.files import read_checked
from opguard_core.trace.sources import SOURCES_NAME
from opguard_harness.access.opened import MARK
from opguard_harness.access.rules import current
from opguard_harness.access.untrusted import one_line
from opguard_harness.config import runs_dir, state_dir
from opguard_harness.workspace.cases import Case
from opguard_harness.workspace.evidence import ARTEFACTS, digest_of, source_named, trace_named
from opguard_harness.workspace.findings import Finding, findings_of
from opguard_harness.workspace.packs.listed import CASE_FILES, JOB_FILES, MOST_LEFT_OUT, is_name
from opguard_harness.workspace.replays import is_replay
from opguard_harness.workspace.stored import ANSWER_FILE, answer_of

_WITH_SOURCE = ("report.json", "report.html")
_OUTPUTS = ("stdout.txt", "stderr.txt")
_LOG_BYTES = 64 << 20
_NAME_CHARS = 200
_DEPTH = 8


@dataclass(frozen=True)
class Source:
    """A file as it was found: whatever else is there later under its path is not it."""

    path: Path
    device: int
    inode: int


@dataclass
class Collected:
    """Files for a pack, and what stays out.

    Attributes:
        files: Where each file lies, by its name in the pack.
        traces: Folder of each side's trace in the pack, by comparison.
        left_out: What stays out, with the reason; at most `MOST_LEFT_OUT`.
        left_out_total: How many things do.
    """

    files: dict[str, Source] = field(default_factory=dict)
    traces: dict[str, dict[str, str]] = field(default_factory=dict)
    left_out: list[dict[str, str]] = field(default_factory=list)
    left_out_total: int = 0
    _named: set[str] = field(default_factory=set)

    def leave_out(self, what: str, why: str) -> None:
        """Name something that stays out, once."""
        if what in self._named:
            return
        self._named.add(what)
        self.left_out_total += 1
        if len(self.left_out) < MOST_LEFT_OUT:
            self.left_out.append({"what": one_line(what, _NAME_CHARS), "why": one_line(why, _NAME_CHARS)})


def collect(case: Case, *, sources: bool) -> Collected:
    """Find everything that goes into the pack of a case.

    Args:
        case: The case.
        sources: Whether source texts go with it.

    Raises:
        CaseDamaged: A file of it is not what we wrote.
        OutsideRoots: A trace lies where this call may not look.
    """
    found = Collected()
    findings = [item for item in findings_of(case.id) if not item.withdrawn]
    _case(case, found, sources=sources)
    compared = [item.job for item in case.jobs if _is_result(runs_dir() / item.job)]
    for job in dict.fromkeys([*compared, *_cited_results(findings)]):
        _result(job, found, sources=sources)
    for job in (item.job for item in case.jobs if is_replay(item.job)):
        try:
            _job_file(JobRef(job, "result"), found)  # it says what was run again, and what came of it
        except OpGuardError as error:
            found.leave_out(str(JobRef(job, "result")), error.message)
    for job in (item.job for item in case.jobs if item.job not in compared):
        found.leave_out(job, "it is no finished comparison; its trace comes along where a comparison or a finding needs it")
    _cited(findings, found, sources=sources)
    return found


def _case(case: Case, found: Collected, *, sources: bool) -> None:
    """The documents of the case."""
    for name in CASE_FILES:
        if not os.path.lexists(case.folder / name):
            continue
        if name in _WITH_SOURCE and not sources:
            found.leave_out(f"case/{name}", "it shows source texts; `write_report` makes it again from the opened case")
        else:
            _add(case.folder / name, f"case/{name}", found)


def _is_result(folder: Path) -> bool:
    """Whether a folder holds a finished comparison or confirmation."""
    return folder.is_dir() and not folder.is_symlink() and (folder / ANSWER_FILE).is_file()


def _result(name: str, found: Collected, *, sources: bool) -> None:
    """A comparison, with the traces that it names."""
    folder = runs_dir() / name
    _walk(folder, f"runs/{name}", found, sources=sources)
    if not _is_result(folder):
        return
    try:
        traces = answer_of(name)["trace"]
        found.traces[name] = {side: _trace(Path(traces[side]), found, sources=sources) for side in SIDES}
    except OpGuardError as error:
        found.leave_out(f"traces of {name}", error.message)


def _trace(trace: Path, found: Collected, *, sources: bool) -> str:
    """A trace's folder in the pack; adds it. One that lies elsewhere becomes a run that is named by its digest.

    Raises:
        EvidenceNotFound: It is gone.
        TraceFormatError: It cannot be told.
    """
    path, base = current().path(trace, "trace"), Path(os.path.realpath(runs_dir()))
    real = Path(os.path.realpath(path))
    inside = real.is_relative_to(base) and is_name(f"runs/{real.relative_to(base)}/manifest.json")
    name = f"runs/{real.relative_to(base)}" if inside else f"runs/trace-{digest_of(path)[:12]}/trace"
    _walk(path, name, found, sources=sources)
    return name


def _cited_results(findings: list[Finding]) -> list[str]:
    """Comparisons that findings cite."""
    parsed = [parse(item.id) for finding in findings for item in finding.evidence]
    return [ref.holder for ref in parsed if isinstance(ref, JobRef) and ref.artefact not in _JOB_ARTEFACTS and _is_result(_run(ref.holder))]


def _run(holder: str) -> Path:
    return runs_dir() / holder


_JOB_ARTEFACTS = {name for name, file in ARTEFACTS.items() if file in JOB_FILES}


def _cited(findings: list[Finding], found: Collected, *, sources: bool) -> None:
    """Whatever findings cite besides."""
    for cited in dict.fromkeys(item.id for finding in findings for item in finding.evidence):
        reference = parse(cited)
        try:
            if isinstance(reference, EventRef):
                _trace(trace_named(reference.trace), found, sources=sources)
            elif isinstance(reference, SourceRef):
                _trace(source_named(reference)[0], found, sources=sources)
                if not sources:
                    found.leave_out(
                        cited, "source texts are packed with --include-sources only, so the finding that cites this cannot be checked"
                    )
            elif reference.artefact in _JOB_ARTEFACTS and is_holder(reference.holder):
                _job_file(reference, found)
        except OpGuardError as error:
            found.leave_out(cited, error.message)


def _job_file(reference: JobRef, found: Collected) -> None:
    """What a job left, if no secret stands in it."""
    name = ARTEFACTS[reference.artefact]
    path = state_dir() / "jobs" / reference.holder / name
    text = read_checked(path, limit=_LOG_BYTES).decode("utf-8", "backslashreplace")
    if redact_text(text) != text:
        found.leave_out(str(reference), "something in it looks like a secret, and it is packed as it is or not at all")
        return
    _add(path, f"jobs/{reference.holder}/{name}", found)


def _walk(folder: Path, name: str, found: Collected, *, sources: bool, depth: int = 0) -> None:
    """All files of a folder that a pack may hold."""
    texts = 0
    if depth > _DEPTH:
        found.leave_out(name, "it lies too deep")
        return
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        below = f"{name}/{entry.name}"
        if entry.is_symlink():
            found.leave_out(below, "a link")
        elif entry.is_dir(follow_symlinks=False):
            if not entry.name.startswith("."):
                _walk(Path(entry.path), below, found, sources=sources, depth=depth + 1)
        elif folder.name == SOURCES_NAME and not sources:
            texts += 1
        elif entry.name in _OUTPUTS:
            found.leave_out(below, "the output of a program")
        elif not entry.name.startswith(".") and entry.name != MARK:
            _add(Path(entry.path), below, found)
    if texts:
        found.leave_out(name, f"{texts} source texts, packed with --include-sources only; expressions stay in the trace's frames")


def _add(path: Path, name: str, found: Collected) -> None:
    """One file, if it is a file and has a name that packs have."""
    if name in found.files:
        return
    if not is_name(name):
        found.leave_out(name, "no kind of file that a pack holds")
        return
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode):
        found.leave_out(name, "a link, or no file")
    else:
        found.files[name] = Source(path, status.st_dev, status.st_ino)
