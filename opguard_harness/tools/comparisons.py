"""Tools about comparisons: pair two stored runs, and read what a comparison found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from opguard_core.ids import SIDES
from opguard_harness.tools.budget import first_fitting, within
from opguard_harness.tools.declaration import Evidence, Next, Result, Tool, argument

_LIST_SHOWN = 16
_LIST_CHARS = 8_000
_ANSWER_CHARS = 6_000  # one call has to be enough, and small enough to be read whole
_TEXT_CHARS = 200
_CANDIDATES_SHOWN = 3
_FRAMES_SHOWN = (6, 3, 1, 0)


@dataclass(frozen=True)
class AlignArguments:
    reference: str = argument("The run that is right: an id of `list_runs`, or a trace directory.")
    suspect: str = argument("The run in question: an id of `list_runs`, or a trace directory.")
    filters: str = argument("File of benign filters to apply, as `list_filters` names it; empty applies none.", "")


@dataclass(frozen=True, kw_only=True)
class AlignResult(Result):
    comparison: str
    verdict: str
    prefix: dict[str, Any]
    compared: dict[str, Any]
    contract: list[dict[str, Any]] = field(default_factory=list)
    reasons: list[dict[str, Any]] = field(default_factory=list)


def align(arguments: AlignArguments) -> AlignResult:
    """Pair the boundaries of two stored runs and certify what is equal."""
    from opguard_harness.compare.pipeline import compare
    from opguard_harness.compare.request import CompareRequest, SideRequest
    from opguard_harness.report.progress import Silent
    from opguard_harness.workspace.filter_file import filters_named
    from opguard_harness.workspace.stored import new_comparison, trace_of

    out = new_comparison()
    sides = SideRequest(trace_of(arguments.reference)), SideRequest(trace_of(arguments.suspect))
    request = CompareRequest(*sides, out=out, filters=filters_named(arguments.filters))
    answer = compare(request, Silent())
    prefix = answer["prefix"]
    summary = f"{answer['verdict']}: {prefix['pairs']} pairs of boundaries are equal before the first difference that matters."
    if answer["verdict"] == "identical":
        summary = f"identical: {prefix['pairs']} pairs of boundaries are equal."
    return AlignResult(
        summary=summary + _hidden(answer),
        comparison=out.name,
        verdict=answer["verdict"],
        prefix=prefix,
        compared=_counted(answer["compared"]),
        contract=within(answer["contract"], _LIST_CHARS),
        reasons=within(answer["reasons"], _LIST_CHARS),
        next=[Next("first_difference", {"comparison": out.name}, "where they part, with both sources")],
    )


def _counted(compared: dict[str, Any]) -> dict[str, Any]:
    """What was compared, with long lists of steps as first, last and count; answer.json has them all."""

    def brief(value: Any) -> Any:
        if isinstance(value, list) and len(value) > _LIST_SHOWN:
            return {"first": value[0], "last": value[-1], "count": len(value)}
        return {key: brief(item) for key, item in value.items()} if isinstance(value, dict) else value

    return {key: brief(value) for key, value in compared.items()}


@dataclass(frozen=True)
class FirstDifferenceArguments:
    comparison: str = argument("A comparison: an id of `list_runs`, or its result folder.")


@dataclass(frozen=True, kw_only=True)
class FirstDifferenceResult(Result):
    verdict: str
    pivot: dict[str, Any] | None = None
    excerpts: dict[str, str] = field(default_factory=dict)
    reasons: list[dict[str, Any]] = field(default_factory=list)
    isolated: int = 0
    text: str = ""


def first_difference(arguments: FirstDifferenceArguments) -> FirstDifferenceResult:
    """Read the verdict of a comparison, with the source of both sides at the first difference."""
    from opguard_harness.report.short import short_answer
    from opguard_harness.workspace.excerpt import excerpts
    from opguard_harness.workspace.stored import answer_of

    answer = answer_of(arguments.comparison)
    pivot = answer["pivot"]

    def build(frames: int) -> FirstDifferenceResult:
        return FirstDifferenceResult(
            summary=_summary(answer) + _hidden(answer),
            verdict=answer["verdict"],
            pivot=_shortened(pivot, frames) if pivot else None,
            excerpts=excerpts(answer, context=min(frames, 3)) if pivot else {},
            reasons=within(answer["reasons"], 250 * frames + 500),
            isolated=len(answer["isolated"]),
            text="\n".join(short_answer(answer)),
            evidence=_evidence(answer),
            next=_following(answer),
        )

    return first_fitting(_FRAMES_SHOWN, build, _ANSWER_CHARS)


def _summary(answer: dict[str, Any]) -> str:
    """The sentence an engineer would quote; only strict words of ours, no text that a run controls."""
    pivot = answer["pivot"]
    if answer["verdict"] == "diverged":
        return f"diverged at step {pivot['step']}, {pivot['phase']}, rank {pivot['rank']}; origin: {pivot['origin']}."
    if answer["verdict"] == "identical":
        return f"identical over {answer['prefix']['pairs']} pairs of boundaries."
    return f"inconclusive: {', '.join(reason['slug'] for reason in answer['reasons'])}."


def _hidden(answer: dict[str, Any]) -> str:
    """The end of a summary: a verdict that filters had a part in is never told without them."""
    pairs = answer["compared"].get("filtered", {}).get("pairs", 0)
    return f" Benign filters hid what differs at {pairs} {'pair' if pairs == 1 else 'pairs'} of boundaries." if pairs else ""


def _shortened(pivot: dict[str, Any], frames: int) -> dict[str, Any]:
    """The pivot with what a reader needs first; the whole one is in answer.json.

    Args:
        pivot: As in an answer.
        frames: Innermost frames of each stack to show; also bounds the list of near places.
    """
    stacks = {
        side: [{key: _line(place[key]) for key in ("file", "line", "function", "text")} for place in stack[len(stack) - frames :]]
        for side, stack in pivot["stack"].items()
        if stack
    }
    places = {side: {key: _line(value) for key, value in pivot[side].items()} if pivot[side] else None for side in SIDES}
    return {**pivot, **places, "stack": stacks, "near": within(pivot["near"], 250 * frames)}


def _line(value: Any) -> Any:
    """A text of bounded length; anything else as it is."""
    return f"{value[: _TEXT_CHARS - 3]}..." if isinstance(value, str) and len(value) > _TEXT_CHARS else value


def _evidence(answer: dict[str, Any]) -> list[Evidence]:
    """The events of the pivot, or of what an inconclusive answer speaks about, as places in the traces."""
    found = []
    for boundary in [answer["pivot"]] if answer["pivot"] else answer.get("candidates", [])[:_CANDIDATES_SHOWN]:
        for side in SIDES:
            seq = (boundary.get("seq") or {}).get(side)
            if seq is not None:
                uri = f"{answer['trace'][side]}#rank={boundary['rank']}&seq={seq}"
                found.append(Evidence(f"{side}:{boundary['rank']}:{seq}", uri, f"{boundary['operator']} {boundary['slot']}"))
    return found


def _following(answer: dict[str, Any]) -> list[Next]:
    """What to look at now."""
    pivot = answer["pivot"]
    if pivot is None:
        return []
    return [
        Next(
            "show_source",
            {"run": answer["trace"][side], "file": pivot[side]["file"], "line": pivot[side]["line"]},
            f"read the {side} around it",
        )
        for side in reversed(SIDES)
        if pivot[side] is not None
    ]


TOOLS = (
    Tool(
        name="align",
        group="compare",
        text="Pair the boundaries of two stored runs and certify how far they are equal. Use it after two `run_guarded` calls; it stores a "
        "comparison that `first_difference` reads.",
        arguments=AlignArguments,
        result=AlignResult,
        run=align,
        read_only=False,
        idempotent=False,
    ),
    Tool(
        name="first_difference",
        group="compare",
        text="Say where two runs part: verdict, place, both sources, origin and what to do next. Use it on any stored "
        "comparison; one call is often enough.",
        arguments=FirstDifferenceArguments,
        result=FirstDifferenceResult,
        run=first_difference,
        read_only=True,
    ),
)
