"""Tool `compare_contracts`: which settings two runs do not share, what follows, and what makes them equal."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from opguard_core.contract.spec import SEVERITIES, rule_of
from opguard_harness.access.untrusted import is_identifier
from opguard_harness.errors import InvalidArguments
from opguard_harness.interface.declaration import Evidence, Next, Result, Role, Tool, Truncated, argument
from opguard_harness.tools.budget import within
from opguard_harness.tools.settings import cited, counted, values_of

if TYPE_CHECKING:
    from opguard_harness.tools.answers import Found

_LIST_CHARS = 12_000
_NAMED = 4
_CITED = 6


@dataclass(frozen=True)
class CompareContractsArguments:
    comparison: str = argument("A comparison: its id, its job, or its folder.", "", role=Role.STORED)
    reference: str = argument("Instead of a comparison: a stored run or trace.", "", role=Role.STORED)
    suspect: str = argument("The run to hold against it.", "", role=Role.STORED)
    severity: str = argument(f"Only {', '.join(SEVERITIES)}; empty for all.", "", pattern=f"^({'|'.join(SEVERITIES)})?$")
    limit: int = argument("Settings to return, worst first.", 20, ge=1, le=200)
    cursor: str = argument("`cursor` of the previous answer.", "", pattern=r"^\d{0,9}$")


@dataclass(frozen=True, kw_only=True)
class CompareContractsResult(Result):
    """``settings``: each with key, severity, both values, ``means`` and ``fix``; ``knob``: whether `deterministic` holds it.

    An advice that holds for several settings stands at the first of them. Evidence of one setting of a comparison is
    ``job:<comparison>/answer/contract.<key>``.
    """

    sparse = True

    counts: dict[str, int] = field(default_factory=dict)
    settings: list[dict[str, Any]] = field(default_factory=list)


def compare_contracts(arguments: CompareContractsArguments) -> CompareContractsResult:
    """List what the contracts of two runs do not share, worst first."""
    found, stored, following = _differences(arguments)
    counts = Counter(item["severity"] for item in found)
    chosen = [item for item in found if arguments.severity in ("", item["severity"])]
    first = int(arguments.cursor or 0)
    page = within(_once([setting(item) for item in chosen[first : first + arguments.limit]]), _LIST_CHARS)
    end = first + len(page)
    return CompareContractsResult(
        summary=_summary(chosen, len(found), arguments.severity),
        counts={severity: counts[severity] for severity in SEVERITIES if counts[severity]},
        settings=page,
        evidence=_evidence(stored, [item for item in chosen[first:end] if item["severity"] != "cosmetic"]),
        next=following,
        truncated=Truncated(len(page), len(chosen), str(end)) if end < len(chosen) else None,
    )


def _evidence(stored: Found | None, items: list[dict[str, Any]]) -> list[Evidence]:
    """The settings themselves; the whole answer where none of them may matter."""
    return [] if stored is None else cited(stored, items[:_CITED]) or stored.itself()


def _once(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows in which each advice is given once."""
    seen: set[str] = set()
    for row in rows:
        if row.get("fix") in seen:
            del row["fix"]
        seen.add(row.get("fix", ""))
    return rows


def _differences(arguments: CompareContractsArguments) -> tuple[list[dict[str, Any]], Found | None, list[Next]]:
    """The differences, worst first, the answer they are cited from, and where to go."""
    if arguments.comparison and not (arguments.reference or arguments.suspect):
        from opguard_harness.tools.answers import answer_named

        stored = answer_named(arguments.comparison)
        following = [Next("first_difference", {"comparison": stored.name}, "what these two runs did differently")]
        return stored.answer["contract"], stored, following
    if arguments.comparison or not (arguments.reference and arguments.suspect):
        raise InvalidArguments(
            "compare_contracts takes a comparison, or a reference and a suspect.", hint="`list_runs` shows the ids of both kinds."
        )
    from opguard_harness.compare.judging import contract_differences
    from opguard_harness.workspace.stored import trace_of

    both = {"reference": arguments.reference, "suspect": arguments.suspect}
    found = contract_differences(*(trace_of(name) for name in both.values()))
    return found, None, [Next("align", both, "what these two runs did differently")]


def setting(item: dict[str, Any]) -> dict[str, Any]:
    """One difference, fit to be shown: its key and values come from the runs."""
    from opguard_core.contract.fixes import fix_of

    rule, fix = rule_of(item["key"]), fix_of(item["key"])
    told = {
        **values_of(item),
        "severity": item["severity"],
        "means": rule.why,
    }
    if fix.text and item["severity"] != "cosmetic":
        told["fix"] = fix.text
    if fix.knob is not None:
        told["knob"] = fix.knob.name
    return told


def _summary(chosen: list[dict[str, Any]], total: int, severity: str) -> str:
    """How many differ of those that were asked for, and the names of the worst, as far as they are strict words."""
    if not total:
        return "The two runs share every setting that was recorded."
    if severity:
        named = _names(chosen)
        return f"{len(chosen)} of the {counted(total)} that differ {'is' if len(chosen) == 1 else 'are'} of severity {severity}{named}."
    counts = Counter(item["severity"] for item in chosen)
    worst = _names([item for item in chosen if item["severity"] == "arithmetic"])
    told = ", ".join(f"{counts[name]} {name}" for name in SEVERITIES[1:] if counts[name])
    verb, change = ("differs" if total == 1 else "differ"), ("changes" if counts["arithmetic"] == 1 else "change")
    return f"{counted(total)} {verb}; {counts['arithmetic']} {change} arithmetic{worst}.{f' Others: {told}.' if told else ''}"


def _names(items: list[dict[str, Any]]) -> str:
    worst = [item["key"] for item in items if is_identifier(item["key"])][:_NAMED]
    return f": {', '.join(worst)}" if worst else ""


TOOLS = (
    Tool(
        name="compare_contracts",
        group="compare",
        text="List the settings that two runs do not share (versions, devices, flags, seeds, variables), worst first, with what follows "
        "and what makes them equal. Use it when a verdict names `contract-conflict`, or before blaming code.",
        arguments=CompareContractsArguments,
        result=CompareContractsResult,
        run=compare_contracts,
        read_only=True,
    ),
)
