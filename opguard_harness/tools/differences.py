"""Tools that look further into a comparison: `explain_difference` around its pivot, `list_differences` over all it found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from opguard_harness.errors import InvalidArguments
from opguard_harness.interface.declaration import Evidence, Next, Result, Role, Tool, Truncated, argument
from opguard_harness.tools.answers import Found, answer_named, brief
from opguard_harness.tools.budget import first_fitting, within
from opguard_harness.tools.comparisons import folded, pivot_of, spread_of, stack_of
from opguard_harness.tools.device import kernels_cited, kernels_of, leads_of
from opguard_harness.tools.shown import shown
from opguard_harness.tools.verdict import hidden, sentence

_EXPLAIN_CHARS = 6_000
_ASKED_CHARS = 16_000  # who asks for more rows than the default gets them
_LIMIT = 20
_LIST_CHARS = 8_000
_CITED = 4
_NAMES = 3


@dataclass(frozen=True)
class ExplainDifferenceArguments:
    comparison: str = argument("A comparison: its id, its job's id, or its result folder.", role=Role.STORED)
    limit: int = argument("Consumers to show, and half as many boundaries before; more than 20: a longer answer.", _LIMIT, ge=1, le=100)


@dataclass(frozen=True, kw_only=True)
class ExplainDifferenceResult(Result):
    """``before``: what ran just before the pivot, oldest first. ``spread``: who reads the difference. ``stack``: innermost frame last.

    ``ranks``: of each other rank, its own first difference and how that one goes on there. ``device_work``: share of it that has a
    boundary; kernels of one side only, which are leads.
    """

    sparse = True

    comparison: str
    pivot: dict[str, Any]
    before: list[dict[str, Any]] = field(default_factory=list)
    spread: dict[str, Any] = field(default_factory=dict)
    stack: dict[str, list[str]] = field(default_factory=dict)
    near: list[dict[str, Any]] = field(default_factory=list)
    ranks: list[dict[str, Any]] = field(default_factory=list)
    device_work: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def explain_difference(arguments: ExplainDifferenceArguments) -> ExplainDifferenceResult:
    """Read the traces again around the pivot of a comparison."""
    from opguard_harness.workspace.surroundings import surroundings

    found = answer_named(arguments.comparison)
    pivot = found.answer["pivot"]
    if pivot is None:
        raise InvalidArguments(
            f"{found.name} is {found.answer['verdict']}: there is no first difference to explain.",
            hint="`list_differences` shows what was seen; `first_difference` says what is missing.",
            next=(Next("list_differences", {"comparison": found.name}, "candidates and differences that ended without effect"),),
        )
    looked = surroundings(found.answer, arguments.limit)
    chars = _EXPLAIN_CHARS if arguments.limit <= _LIMIT else _ASKED_CHARS
    levels = [arguments.limit, *(size for size in (70, 50, 40, 30, 20, 15, 12, 10, 8, 6, 5, 4, 3, 2, 1, 0) if size < arguments.limit)]
    return first_fitting(levels, lambda limit: _explained(found, pivot, looked, limit), chars)


def _explained(found: Found, pivot: dict[str, Any], looked: dict[str, Any], limit: int) -> ExplainDifferenceResult:
    """The answer with that many boundaries on each list."""
    spread = looked.get("spread") or found.answer.get("spread")
    before = looked.get("before", [])
    near = [
        {"what": item["what"], **brief(found, {"rank": pivot["rank"], **item})} for item in pivot["near"] if item["what"] != "consumer"
    ][: limit // 4]
    others = looked.get("ranks", [])
    ranks = [_rank(found, item, limit) for item in others[: 2 * limit + 1]]
    total = 0 if spread is None else spread["total"]
    shows = 0 if spread is None else min(limit, len(spread["consumers"]))
    again = {"comparison": found.name}
    return ExplainDifferenceResult(
        summary=f"{sentence(found.answer)} {total} boundaries of that step read the difference.{hidden(found.answer)}",
        comparison=found.name,
        pivot={**pivot_of(found, pivot, 0 if limit > 2 else -1), **kernels_of(found, pivot, 2 if limit > 2 else -1)},
        before=folded([{**brief(found, item), "results": item["results"]} for item in before[max(0, len(before) - (limit + 1) // 2) :]]),
        spread=spread_of(found, spread, limit, names=limit if limit > _LIMIT else _NAMES),
        stack=stack_of(found, pivot, max(limit // 2, 1)),
        near=near,
        ranks=ranks,
        device_work=leads_of(found.answer, limit // 3),
        notes=[*([f"{len(others) - len(ranks)} more ranks have first differences of their own."] if len(others) > len(ranks) else [])]
        + [note for note in (looked.get("problem", ""), found.problem) if note],
        evidence=[*found.events(pivot, pivot["slot"]), *kernels_cited(found, pivot)],
        next=[
            *found.confirming(),
            Next("list_differences", again, "other ranks, and differences that ended without effect"),
        ],
        truncated=Truncated(shows, total, "") if shows < total else None,
    )


def _rank(found: Found, item: dict[str, Any], limit: int) -> dict[str, Any]:
    """The first difference of another rank, how many boundaries read it there, and what it reaches: ids, and counts of state."""
    first = item["first"]
    if "problem" in item:
        return {**brief(found, first), "problem": item["problem"]}
    spread = item["spread"]
    if spread is None:
        return brief(found, first)
    more = {
        "consumers": [found.either_id(consumer) for consumer in spread["consumers"][: limit // 4]],
        "rejoins": found.either_id(spread["rejoined"]) if spread["rejoined"] else "",
        "reaches": {what: found.either_id(boundary) for what, boundary in spread["reached"].items()},
        "state": {kind: named["count"] for kind, named in spread["state"].items()},
        "followed": "" if spread["whole"] else "in part",
    }
    return {**brief(found, first), "total": spread["total"], **{key: value for key, value in more.items() if value}}


@dataclass(frozen=True)
class ListDifferencesArguments:
    comparison: str = argument("A comparison: its id, its job's id, or its result folder.", role=Role.STORED)
    limit: int = argument("Rows to return.", 20, ge=1, le=100)
    cursor: str = argument("`cursor` of the previous answer.", "", pattern=r"^(\d{1,6})?$")


@dataclass(frozen=True, kw_only=True)
class ListDifferencesResult(Result):
    """Each row: ``what`` it is (pivot, first of its rank, first of its thread, candidate, isolated), place, thread, evidence id."""

    sparse = True

    comparison: str
    verdict: str
    differences: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def list_differences(arguments: ListDifferencesArguments) -> ListDifferencesResult:
    """List every difference that an answer names, the telling ones first."""
    found = answer_named(arguments.comparison)
    rows, notes = _rows(found)
    first = int(arguments.cursor or 0)
    if first and first >= len(rows):
        raise InvalidArguments(
            f"list_differences: cursor {first} lies beyond the {len(rows)} rows.", hint="Leave the cursor out to start over."
        )
    listed = [{"what": what, **brief(found, boundary), **_thread(boundary)} for what, boundary in rows[first : first + arguments.limit]]
    page = within(listed, _LIST_CHARS) or listed[:1]
    end = first + len(page)
    more = found.answer["compared"].get("isolated_not_listed", 0)
    cited: list[Evidence] = [item for _, boundary in rows[first:end] for item in found.events(boundary, boundary["slot"])][:_CITED]
    count = f"{len(rows)} {'difference' if len(rows) == 1 else 'differences'}"
    told = f" {more} more ended without effect and are not listed." if more else ""
    return ListDifferencesResult(
        summary=f"{count} of {found.name} ({found.answer['verdict']}).{told}{hidden(found.answer)}",
        comparison=found.name,
        verdict=found.answer["verdict"],
        differences=page,
        notes=notes,
        evidence=cited or found.itself(),
        next=_after_list(found, page),
        truncated=Truncated(len(page), len(rows), str(end)) if end < len(rows) else None,
    )


def _rows(found: Found) -> tuple[list[tuple[str, dict[str, Any]]], list[str]]:
    """What each difference is, and the difference: firsts by rank, then by thread and rank, then the others; and notes on them."""
    from opguard_harness.workspace.surroundings import first_of_lanes

    answer = found.answer
    pivot = answer["pivot"]
    rows = [("pivot", pivot)] if pivot else []
    rows += [("first of its rank", item) for item in answer["rank_firsts"] if pivot is None or item["rank"] != pivot["rank"]]
    lanes, notes = first_of_lanes(answer)
    rows += [("first of its thread", item) for item in sorted(lanes, key=lambda item: (item["thread"], item["rank"]))]
    rows += [("candidate", item) for item in answer.get("candidates", [])]
    return [*rows, *(("isolated", item) for item in answer["isolated"])], notes


def _thread(boundary: dict[str, Any]) -> dict[str, str]:
    """The thread of a boundary, by its role."""
    return {"thread": shown(boundary["thread"], 80)} if boundary.get("thread") else {}


def _after_list(found: Found, page: list[dict[str, Any]]) -> list[Next]:
    calls = [Next("explain_difference", {"comparison": found.name}, "what lies around the pivot")] if found.answer["pivot"] else []
    shows = next((row["id"] for row in page if row["id"]), "")
    return [*calls, *([Next("get_evidence", {"id": shows, "comparison": found.name}, "the first of them as recorded")] if shows else [])]


TOOLS = (
    Tool(
        name="explain_difference",
        group="evidence",
        text="Show what lies around the first difference: boundaries before it, every consumer after it with what became of it, where the "
        "sides meet again, both stacks. Use it when `first_difference` is not enough.",
        arguments=ExplainDifferenceArguments,
        result=ExplainDifferenceResult,
        run=explain_difference,
        read_only=True,
    ),
    Tool(
        name="list_differences",
        group="evidence",
        text="List all differences a comparison names: its pivot, other ranks' firsts, candidates of an inconclusive verdict, and "
        "those that ended without effect. Use it after `first_difference`.",
        arguments=ListDifferencesArguments,
        result=ListDifferencesResult,
        run=list_differences,
        read_only=True,
    ),
)
