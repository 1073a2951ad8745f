"""Tools about cases: open or resume one, and record what was found out."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opguard_harness.access.rules import current
from opguard_harness.errors import InvalidArguments
from opguard_harness.interface.declaration import Evidence, Next, Result, Role, Tool, Truncated, argument

if TYPE_CHECKING:
    from opguard_harness.workspace.cases import Case
    from opguard_harness.workspace.findings import Finding
    from opguard_harness.workspace.listing import Entry

ANOTHER = "new"
_SYMPTOM_SHOWN = 300
_CLAIM_SHOWN = 160
_LOOSE_SHOWN = 8
_ROWS_SHOWN = 4
_FINDINGS_SHOWN = 4
_PAGE_SHOWN = 25
_PAGE_CHARS = 8_000
_DAMAGED_SHOWN = 3


@dataclass(frozen=True)
class OpenCaseArguments:
    symptom: str = argument("What goes wrong, in a sentence; not needed to resume.", "", max_length=2_000)
    root: str = argument("Folder of the programs; empty: the server's.", "", role=Role.SIDE)
    case: str = argument("Case to resume, or `new`.", "", max_length=64)
    cursor: str = argument("`cursor` of the previous answer.", "", max_length=64)
    pack: str = argument("Or a pack to read.", "", role=Role.FILE)


@dataclass(frozen=True, kw_only=True)
class OpenCaseResult(Result):
    """``done``: how many jobs of each state and findings there are, the newest of each, the report, and damaged cases beside it."""

    case: str
    root: str
    symptom: str
    resumed: bool
    done: dict[str, Any] = field(default_factory=dict)


def open_case(arguments: OpenCaseArguments) -> OpenCaseResult:
    """Open a case, or resume the newest one of that root, and say how far it is."""
    from opguard_harness.tools.case_steps import next_steps, read_steps
    from opguard_harness.tools.listing import brief, known_jobs, of_case
    from opguard_harness.workspace.cases import all_cases
    from opguard_harness.workspace.findings import findings_of
    from opguard_harness.workspace.listing import entries

    case, resumed, came = _opened(arguments)
    every = entries(known_jobs())
    rows = of_case(case.id, every)
    standing = [item for item in reversed(findings_of(case.id)) if not item.withdrawn]
    page, cut = _page(standing, arguments.cursor)
    done = {
        "jobs": dict(Counter(row.state for row in rows)),
        "newest_jobs": [brief(row) for row in rows[:_ROWS_SHOWN]],
        "findings": len(standing),
        "newest_findings" if not arguments.cursor else "older_findings": page,
        "report": _report(case),
        "pack": _pack(case),
        "damaged_cases": all_cases()[1][:_DAMAGED_SHOWN],
    }
    return OpenCaseResult(
        summary=came or _said(arguments, case, resumed=resumed, jobs=len(rows), findings=len(standing)),
        case=case.id,
        root=str(case.root),
        symptom=_line(case.symptom, _SYMPTOM_SHOWN),
        resumed=resumed,
        done={name: value for name, value in done.items() if value},
        next=read_steps(case.id, rows)
        if case.is_opened
        else next_steps(
            case.id, case.root, rows, findings=len(standing), reported=_is_reported(case), loose="" if rows else _loose(case, every)
        ),
        truncated=cut,
    )


def _report(case: Case) -> str:
    """Where the last report is, and whether findings were recorded since; empty if there is none."""
    if not (case.folder / "report.md").is_file():
        return ""
    return f"opguard://cases/{case.id}/report{'' if _is_reported(case) else ', older than the newest finding'}"


def _is_reported(case: Case) -> bool:
    """Whether there is a report, and no finding was recorded or withdrawn since."""
    report, findings = case.folder / "report.md", case.folder / "findings.json"
    return report.is_file() and not (findings.exists() and findings.stat().st_mtime_ns > report.stat().st_mtime_ns)


def _loose(case: Case, rows: list[Entry]) -> str:
    """A finished comparison of programs of its root that no case notes."""
    from opguard_harness.workspace.adopting import loose

    return loose(case, (row.id for row in rows if row.kind == "compare" and row.state == "succeeded"))


def _page(findings: list[Finding], cursor: str) -> tuple[list[dict[str, Any]], Truncated | None]:
    """The findings to show, newest first: few at first, more when asked to go on.

    Raises:
        InvalidArguments: The cursor is no finding of the case.
    """
    from opguard_harness.tools.budget import within

    names = [item.id for item in findings]
    if cursor and cursor not in names:
        raise InvalidArguments(
            f"open_case: cursor {cursor[:64]!r} is none that this tool gave.", hint="Leave the cursor out to start over."
        )
    left = findings[names.index(cursor) + 1 :] if cursor else findings
    shown = within((_brief(item) for item in left[: _PAGE_SHOWN if cursor else _FINDINGS_SHOWN]), _PAGE_CHARS)
    return shown, Truncated(len(shown), len(findings), str(shown[-1]["id"])) if len(shown) < len(left) else None


def _pack(case: Case) -> dict[str, Any]:
    """What a case that came out of a pack is; empty for one of our own."""
    from opguard_harness.access.opened import opened

    mark = opened(case.folder)
    if mark is None:
        return {}
    return {"of": mark.of, "read_only": True, "sources": mark.sources, "filters_approved": mark.approved, "left_out": mark.left_out}


def _opened(arguments: OpenCaseArguments) -> tuple[Case, bool, str]:
    """The case that is meant, whether it was there before, and of one that came out of a pack just now a sentence about it."""
    if arguments.pack:
        return _unpacked(arguments)
    return (*_resumed(arguments), "")


def _unpacked(arguments: OpenCaseArguments) -> tuple[Case, bool, str]:
    """The case of a pack, opened if it is not yet."""
    from opguard_harness.workspace.packs.opening import open_pack

    given = [name for name in ("symptom", "root", "case", "cursor") if getattr(arguments, name)]
    if given:
        raise InvalidArguments(f"open_case: with `pack`, leave {', '.join(given)} out: the pack says it.")
    found = open_pack(Path(arguments.pack))
    filters = f" {len(found.filters)} filters came with it and are off." if found.filters and not found.approved else ""
    sources = "" if found.sources else " It holds no source texts."
    said = f"Opened the pack of {found.of} as {found.case.id}, read only, every digest checked.{sources}{filters}"
    return found.case, not found.new, said


def _resumed(arguments: OpenCaseArguments) -> tuple[Case, bool]:
    """The case that is meant, and whether it was there before."""
    from opguard_core.plan.redact import redact_text
    from opguard_harness.workspace.cases import open_or_resume, require_case

    if arguments.case and arguments.case != ANOTHER:
        case = require_case(arguments.case)
        if not case.is_opened:  # that one's root is a folder of another machine
            current().path(case.root, "root of the case")
        return case, True
    root = Path(arguments.root).expanduser() if arguments.root else _default_root()
    if not root.exists():
        raise InvalidArguments(f"open_case: root {str(root)[:200]!r} does not exist.", hint="Name the folder that holds the programs.")
    folder = root if root.is_dir() else root.parent
    another = arguments.case == ANOTHER
    if another and not arguments.symptom.strip():
        raise InvalidArguments("open_case: a new case needs a symptom.", hint="Say in a sentence what goes wrong.")
    return open_or_resume(folder, " ".join(redact_text(arguments.symptom).split()), another=another)


def _default_root() -> Path:
    """The first root of this server; of a shell, the current folder."""
    roots = current().roots
    return roots[0] if roots else Path(os.curdir).absolute()


def _said(arguments: OpenCaseArguments, case: Case, *, resumed: bool, jobs: int, findings: int) -> str:
    """What happened, in words of ours only."""
    if not resumed:
        return f"Opened {case.id}; give it as `case` to the tools that start jobs."
    from opguard_core.plan.redact import redact_text

    said = " ".join(redact_text(arguments.symptom).split())
    other = f" It has another symptom than yours: case '{ANOTHER}' opens one of its own." if said and said != case.symptom else ""
    done = f"{jobs} {'job' if jobs == 1 else 'jobs'} and {findings} {'finding' if findings == 1 else 'findings'} so far"
    return f"Resumed {case.id}, the newest of its folder, with {done}.{other}" if not arguments.case else f"{case.id} has {done}."


def _brief(finding: Finding) -> dict[str, Any]:
    """A finding in a few words."""
    told = {
        "id": finding.id,
        "basis": finding.basis,
        "claim": _line(finding.claim, _CLAIM_SHOWN),
        "evidence": [one.id for one in finding.evidence][:3],
    }
    return {key: value for key, value in told.items() if value}


def _line(text: str, limit: int) -> str:
    from opguard_harness.access.untrusted import one_line

    return one_line(text, limit)


@dataclass(frozen=True)
class RecordFindingArguments:
    case: str = argument("The case.", max_length=64)
    claim: str = argument("One sentence; values in backticks must stand in what it cites; `observed` needs one.", "", max_length=1_000)
    basis: str = argument(
        "What it rests on; `externally reported` needs no evidence.",
        "observed",
        pattern="^(observed|source inference|intervention tested|externally reported)$",
    )
    evidence: list[str] = argument("Ids from `evidence` of results: ev:, src: or job:.", [], max_length=16)
    withdraw: str = argument("Id of a finding to withdraw instead.", "", max_length=64)


@dataclass(frozen=True, kw_only=True)
class RecordFindingResult(Result):
    finding: str
    claim: str
    basis: str
    recorded: bool
    unchecked: list[str] = field(default_factory=list)


def record_finding(arguments: RecordFindingArguments) -> RecordFindingResult:
    """Record a claim whose evidence resolves now, or withdraw one."""
    from opguard_core.plan.redact import redact_text
    from opguard_harness.workspace.cases import require_case
    from opguard_harness.workspace.citations import cite_all, unchecked
    from opguard_harness.workspace.findings import CLAIM_CHARS, finding_of, quoted_in, record

    if arguments.withdraw:
        return _withdrawn(arguments)
    claim = " ".join(redact_text(arguments.claim).split())[:CLAIM_CHARS]
    new = finding_of(
        claim, arguments.basis, cite_all(require_case(arguments.case), claim, list(dict.fromkeys(arguments.evidence)), arguments.basis)
    )
    stored, changed = record(arguments.case, new)
    count = len(stored.evidence)
    how = "Recorded" if changed else "Recorded already:"
    shown = f"{count} {'record that it cites exists' if count == 1 else 'records that it cites exist'}" if count else "it cites nothing"
    quoted = len(quoted_in(stored.claim)) if count else 0
    checked = f"{quoted} quoted {'value was' if quoted == 1 else 'values were'} found in them" if quoted else "no word of it was checked"
    loose = unchecked(stored, {})
    told = f" Not checked, for no record it cites says so: {', '.join(loose[:_LOOSE_SHOWN])}." if loose else ""
    return RecordFindingResult(
        summary=f"{how} {stored.id} ({stored.basis}); {shown}, {checked}.{told}",
        finding=stored.id,
        claim=stored.claim,
        basis=stored.basis,
        recorded=changed,
        unchecked=list(loose),
        evidence=[Evidence(one.id, one.uri, one.quote) for one in stored.evidence],
        next=[Next("write_report", {"case": arguments.case}, "check every finding again and write them down")],
    )


def _withdrawn(arguments: RecordFindingArguments) -> RecordFindingResult:
    """Take one finding out of the report to come."""
    from opguard_harness.workspace.findings import withdraw

    given = [name for name in ("claim", "evidence") if getattr(arguments, name)]
    if given:
        raise InvalidArguments(f"record_finding either withdraws a finding or records one; with `withdraw`, leave {', '.join(given)} out.")
    gone = withdraw(arguments.case, arguments.withdraw)
    return RecordFindingResult(
        summary=f"Withdrew {gone.id}; it stays in the case's file and leaves the report.",
        finding=gone.id,
        claim=gone.claim,
        basis=gone.basis,
        recorded=False,
        next=[Next("open_case", {"case": arguments.case}, "what is left")],
    )


TOOLS = (
    Tool(
        name="open_case",
        group="cases",
        text="Open an investigation, or resume the folder's newest: what is done so far and the next step. "
        "Use it first, and after any restart.",
        arguments=OpenCaseArguments,
        result=OpenCaseResult,
        run=open_case,
        read_only=False,
    ),
    Tool(
        name="record_finding",
        group="cases",
        text="Record what was found out, with its basis and the evidence that shows it. Use it for each thing that the report is "
        "to say; the evidence is looked up now, and again for the report.",
        arguments=RecordFindingArguments,
        result=RecordFindingResult,
        run=record_finding,
        read_only=False,
    ),
)
