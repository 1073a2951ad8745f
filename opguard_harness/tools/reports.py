"""Tool `write_report`: what was found out, checked once more and written down."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from opguard_harness.errors import ReportRefused
from opguard_harness.interface.declaration import Next, Result, Role, Tool, Truncated, argument

if TYPE_CHECKING:
    from opguard_harness.workspace.case_report import CheckedVerdict
    from opguard_harness.workspace.cases import Case
    from opguard_harness.workspace.findings import Finding

_EVIDENCE_SHOWN = 6
_CLAIMS_SHOWN = 5
_CLAIM_SHOWN = 160


@dataclass(frozen=True)
class WriteReportArguments:
    case: str = argument("The case.", max_length=64)
    verdict: str = argument("The verdict you expect; another is refused.", "", pattern="^(diverged|identical|inconclusive)?$")
    comparison: str = argument("Which one; empty: the case's newest.", "", role=Role.STORED)
    pack: bool = argument("Pack the case, too.", False)


@dataclass(frozen=True, kw_only=True)
class WriteReportResult(Result):
    """``path``, ``digest``: of report.md. ``page``: as HTML. ``data``: for programs. ``timeline``: for the Perfetto viewer.

    ``pack``: the case as one file for somebody else, without source texts.
    """

    path: str
    uri: str
    digest: str
    page: dict[str, str]
    data: dict[str, str]
    timeline: dict[str, str]
    verdict: str
    text: str
    findings: list[dict[str, str]] = field(default_factory=list)
    pack: dict[str, str] = field(default_factory=dict)


def write_report(arguments: WriteReportArguments, out: Path | None = None) -> WriteReportResult:
    """Check verdict and findings of a case again; write the report if all of it holds.

    Args:
        arguments: What was asked for.
        out: Another folder than the case's own.
    """
    from opguard_harness.access.untrusted import one_line
    from opguard_harness.workspace.cases import require_case
    from opguard_harness.workspace.reporting.files import TIMELINE, gather, write

    case = require_case(arguments.case)
    comparison = arguments.comparison or _newest(case)
    _agrees(arguments, comparison)
    gathered = gather(case, comparison)
    checked, findings = gathered.checked, gathered.findings
    _note(case, comparison)
    written = write(case, gathered, out)
    evidence = [side.evidence for side in checked.sides.values()] + [one for _, cited in findings for one in cited]
    distinct = list({item.id: item for item in evidence}.values())
    verdict = checked.answer["verdict"]
    uri = f"opguard://cases/{case.id}/report"
    files = {name: {"path": str(path), "uri": path.as_uri(), "digest": written.digests[name]} for name, path in written.paths.items()}
    return WriteReportResult(
        summary=f"Report written: {verdict}, {len(findings)} {'finding' if len(findings) == 1 else 'findings'}, "
        f"{len(distinct)} citations looked up again.",
        path=files["report.md"]["path"],
        uri=uri,
        digest=files["report.md"]["digest"],
        page=files["report.html"],
        data=files["report.json"],
        timeline=files.get(TIMELINE, {"missing": one_line(written.note, 200)}),
        verdict=verdict,
        text=_short(checked),
        findings=[_brief(finding) for finding, _ in findings[:_CLAIMS_SHOWN]],
        pack=_packed(case) if arguments.pack else {},
        evidence=distinct[:_EVIDENCE_SHOWN],
        truncated=Truncated(_CLAIMS_SHOWN, len(findings), "") if len(findings) > _CLAIMS_SHOWN else None,
    )


def _note(case: Case, comparison: str) -> None:
    """The case relies on what its report is about, wherever the report lies: it is held against that later."""
    from opguard_harness.config import runs_dir
    from opguard_harness.workspace.cases import note_job
    from opguard_harness.workspace.stored import folder_of

    folder = folder_of(comparison).resolve()
    if folder.parent == runs_dir().resolve() and not case.is_opened:
        note_job(case.id, folder.name)


def _packed(case: Case) -> dict[str, str]:
    """The case with the report just written as one new file in the state folder."""
    from opguard_harness.config import fresh_name, private_dir, state_dir
    from opguard_harness.workspace.packs.writing import pack

    made = pack(case.id, private_dir(state_dir() / "packs") / f"{fresh_name(case.id)}.zip")
    return {"path": str(made.path), "uri": made.path.as_uri(), "digest": made.sha256}


def _newest(case: Case) -> str:
    """The newest finished comparison of a case.

    Raises:
        ReportRefused: It has none.
    """
    from opguard_harness.tools.case_steps import next_steps
    from opguard_harness.tools.listing import known_jobs, of_case
    from opguard_harness.workspace.listing import entries

    rows = of_case(case.id, entries(known_jobs()))
    found = next((row.id for row in rows if row.kind == "compare" and row.state == "succeeded"), "")
    if not found:
        raise ReportRefused(
            f"No report was written: {case.id} has no finished comparison.",
            hint="Compare with this `case`, or name a `comparison` of `list_runs`.",
            next=[*next_steps(case.id, case.root, rows, findings=0), Next("list_runs", {"kind": "compare"}, "all comparisons")][:3],
        )
    return found


def _agrees(arguments: WriteReportArguments, comparison: str) -> None:
    """Refuse a report to someone who expects another verdict."""
    from opguard_harness.workspace.stored import answer_of

    found = answer_of(comparison)["verdict"] if arguments.verdict else ""
    if arguments.verdict != found:
        raise ReportRefused(
            f"No report was written: the verdict of {comparison[:120]} is {found}, and not {arguments.verdict}.",
            hint="Leave `verdict` out, or name the comparison that you mean.",
            next=[Next("first_difference", {"comparison": comparison}, "what it found")],
        )


def _short(checked: CheckedVerdict) -> str:
    """The verdict in a sentence; words of ours only."""
    answer, pairs = checked.answer, checked.answer["prefix"]["pairs"]
    pivot = answer["pivot"]
    if answer["verdict"] == "diverged":
        where = f"step {pivot['step']}, {pivot['phase']}, rank {pivot['rank']}"
        return f"diverged at {where}, after {pairs} equal pairs; origin: {pivot['origin']}."
    if answer["verdict"] == "identical":
        return f"identical over {pairs} pairs of boundaries."
    return f"inconclusive: {', '.join(reason['slug'] for reason in answer['reasons'])}."


def _brief(finding: Finding) -> dict[str, str]:
    from opguard_harness.access.untrusted import one_line

    return {"id": finding.id, "basis": finding.basis, "claim": one_line(finding.claim, _CLAIM_SHOWN)}


TOOLS = (
    Tool(
        name="write_report",
        group="report",
        text="Write the report of a case: verdict and findings, each checked again. It refuses by name what it cannot check. Use it last.",
        arguments=WriteReportArguments,
        result=WriteReportResult,
        run=write_report,
        read_only=False,
    ),
)
