"""The answer for people: at most six lines, which say what, where, why, what next and where to look.

Source text and names come from the observed programs; everything passes through the terminal escape.
"""

from __future__ import annotations

from typing import Any

from opguard_harness.report.escape import terminal

_TEXT_SHOWN = 110
_ORIGINS = {
    "operator": "all inputs and arguments are equal and the result differs (another implementation, a race, or hardware)",
    "argument": "an argument that is not a tensor differs",
    "dtype": "the same work is done in another precision",
    "mutated": "the bytes read are not the bytes their producer wrote: something changed them in between",
    "unobserved-producer": "an input differs and nothing that was observed produced it",
    "input-data": "the batch differs already",
    "initial-state": "parameters or buffers differ before the first step",
    "random-state": "the random generator is in another state",
    "permutation": "the same elements in another order",
    "structure": "one side does work that the other one lacks",
}
_NEXT = {
    "operator": "run both sides once more; if the place moves, it is a race; else compare the implementations of this operator",
    "argument": "follow the argument back to where it is computed",
    "dtype": "look for a cast, an autocast region or a default dtype that one side lacks",
    "mutated": "look for writes through another view, another thread or `.data` between producer and reader",
    "unobserved-producer": "look at what the coverage section says was not seen",
    "input-data": "compare the data pipelines: order, seed, workers, collation",
    "initial-state": "compare initialisation, seeding and what a checkpoint loads",
    "random-state": "look for a random draw that one side makes and the other one does not",
    "permutation": "look for a transpose, a gather or a sort that differs",
    "structure": "decide whether the extra or missing work is meant",
}
_COMPARED = (("ranks", "ranks"), ("steps", "steps"), ("paired", "paired_share"))


def short_answer(answer: dict[str, Any]) -> list[str]:
    """Render a checked answer in at most six lines.

    Args:
        answer: The documented object, with a verdict.
    """
    lines = {"diverged": _diverged, "identical": _identical, "inconclusive": _inconclusive}[answer["verdict"]](answer)
    traces = answer["trace"]
    return [*lines, f"traces      {traces['reference']}  {traces['suspect']}"]


def _diverged(answer: dict[str, Any]) -> list[str]:
    pivot = answer["pivot"]
    where = f"step {pivot['step']}, {pivot['phase']}, rank {pivot['rank']}"
    others = f" (or {', '.join(pivot['origin_alternatives'])})" if pivot["origin_alternatives"] else ""
    changed = [item["key"] for item in answer["contract"] if item["severity"] == "arithmetic"]
    caution = f" Note that settings that change arithmetic differ: {_cut(', '.join(changed))}." if changed else ""
    return [
        f"diverged    {where}: {terminal(pivot['operator'])} {terminal(pivot['slot'])}, after {answer['prefix']['pairs']} equal pairs",
        *(f"{side:<11} {_place(pivot[side])}" for side in ("reference", "suspect")),
        f"origin      {pivot['origin']}{others}: {_ORIGINS[pivot['origin']]}.{caution}",
        f"next        {_NEXT[pivot['origin']]}",
    ]


def _identical(answer: dict[str, Any]) -> list[str]:
    prefix, compared = answer["prefix"], answer["compared"]
    isolated = answer["isolated"]
    named = (
        f"{len(isolated)} that ended without effect; the first: {_place(isolated[0]['suspect'] or isolated[0]['reference'])}"
        if isolated
        else "none"
    )
    return [
        f"identical   {prefix['pairs']} pairs of boundaries, {prefix['tensors']} tensors, {prefix['bytes']} bytes",
        f"compared    {', '.join(f'{name} {_cut(str(compared[key]))}' for name, key in _COMPARED)}",
        f"differences {named}",
        f"limits      {_reasons(answer) or 'none'}",
    ]


def _inconclusive(answer: dict[str, Any]) -> list[str]:
    first = answer["reasons"][0]
    more = f"; also: {', '.join(reason['slug'] for reason in answer['reasons'][1:])}" if answer["reasons"][1:] else ""
    lines = [
        f"inconclusive {terminal(first['slug'])}: {_cut(first['text'], 300)}{terminal(more)}",
        f"next        {_cut(first['fix'], 300)}",
        f"equal       {answer['prefix']['pairs']} pairs of boundaries before that",
    ]
    if answer["pivot"]:
        lines.append(f"candidate   {_place(answer['pivot']['suspect'] or answer['pivot']['reference'])}")
    return lines


def _place(place: dict[str, Any] | None) -> str:
    """``file:line in function | expression``."""
    if place is None:
        return "(this side has no such operator)"
    return f"{terminal(place['file'])}:{place['line']} in {terminal(place['function'])} | {_cut(place['text'])}"


def _reasons(answer: dict[str, Any]) -> str:
    return "; ".join(_cut(reason["text"], 200) for reason in answer["reasons"][:2])


def _cut(text: str, limit: int = _TEXT_SHOWN) -> str:
    """One escaped line of bounded length."""
    flat = " ".join(text.split())
    return terminal(flat if len(flat) <= limit else f"{flat[: limit - 3]}...")
