"""The answer for people: at most six lines, which say what, where, why, what next and where to look.

One more for filters, one for named boundaries, and one for patterns of calls that named none. Source text and names come from the
observed programs; everything passes through the terminal escape.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opguard_core.ids import SIDES
from opguard_harness.report import device_words, semantic_words
from opguard_harness.report.escape import terminal

_TEXT_SHOWN = 110
_STATE = "opguard.state"  # the boundary at the end of a step: it compares, nothing of the program reads there
_FILTERS_SHOWN = 6
ORIGINS = {
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
_PERHAPS_MUTATED = (
    "all arguments are equal, all inputs as well as far as they were read again, and the result differs (another implementation, a race, "
    "hardware, or an input that was overwritten unseen; mode `verify` tells them apart)"
)
_FROM_OTHERS = (
    "what this rank hands in is equal and what it gets differs (what another rank sent, or how it was reduced)",
    "look at what the other ranks hand in there: `list_differences` has the first difference of each",
)
_ANOTHER_VALUE = (
    "the two sides read different values there (another tensor, an older value, or other elements)",
    "follow that value back on both sides to where it is made or chosen",
)
NEXT = {
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
_CAVEATS = ("precision-policy", "unseeded", "runs-differ")
_COMPARED = (("ranks", "ranks"), ("steps", "steps"), ("paired", "paired_share"))


_COLLECTIVES = ("c10d.", "_c10d_functional.")


def means(pivot: Mapping[str, Any]) -> str:
    """What the origin of a pivot means.

    Args:
        pivot: As in an answer.
    """
    return _told(pivot)[0]


def advice(pivot: Mapping[str, Any]) -> str:
    """What to do about a pivot of its origin.

    Args:
        pivot: As in an answer.
    """
    return _told(pivot)[1]


def _told(pivot: Mapping[str, Any]) -> tuple[str, str]:
    """What an origin means and what to do, closer where more is known: others send what a collective gives, and a pair lacks nothing."""
    origin = pivot["origin"]
    if origin == "operator" and pivot["operator"].startswith(_COLLECTIVES):
        return _FROM_OTHERS
    if origin == "structure" and pivot["slot"].startswith("in.") and None not in (pivot["reference"], pivot["suspect"]):
        return _ANOTHER_VALUE
    perhaps = origin == "operator" and "mutated" in pivot["origin_alternatives"]
    return _PERHAPS_MUTATED if perhaps else ORIGINS[origin], NEXT[origin]


def short_answer(answer: dict[str, Any]) -> list[str]:
    """Render a checked answer in at most six lines, with one more for filters, named boundaries and unused patterns of calls each.

    Args:
        answer: The documented object, with a verdict.
    """
    lines = {"diverged": _diverged, "identical": _identical, "inconclusive": _inconclusive}[answer["verdict"]](answer)
    traces = answer["trace"]
    return [*lines, *_named(answer), *_calls(answer), *_filters(answer), f"traces      {traces['reference']}  {traces['suspect']}"]


def _diverged(answer: dict[str, Any]) -> list[str]:
    pivot = answer["pivot"]
    where = f"step {pivot['step']}, {pivot['phase']}, rank {pivot['rank']}"
    what = f"{terminal(pivot['operator'])} {terminal(pivot['slot'])}"
    others = f" (or {', '.join(pivot['origin_alternatives'])})" if pivot["origin_alternatives"] else ""
    changed = [item["key"] for item in answer["contract"] if item["severity"] == "arithmetic"]
    caution = f" Note that settings that change arithmetic differ: {_cut(', '.join(changed))}." if changed else ""
    caveat = _caveat(answer)
    said = f" {_cut(caveat['text'], 300)}" if caveat else ""
    said += _made(pivot) + _kernels(pivot)
    return [
        f"diverged    {where}: {what}, after {answer['prefix']['pairs']} equal pairs{_replayed(answer)}",
        *(f"{side:<11} {_side(pivot, side)}" for side in SIDES),
        f"origin      {pivot['origin']}{others}: {means(pivot)}.{said}{caution}",
        f"next        {_offered(answer) or (_cut(caveat['fix'], 300) if caveat else advice(pivot))}",
    ]


def _made(pivot: dict[str, Any]) -> str:
    """Where each side made what it reads, if both are known and are not alike; nothing otherwise."""
    made = {side: near for near in pivot["near"] if near["what"] == "producer" for side in SIDES if near[side] is not None}
    if not pivot["slot"].startswith("in.") or len({(near["operator"], near[side]["text"]) for side, near in made.items()}) < len(SIDES):
        return ""
    reference, suspect = (_place(made[side][side]) for side in SIDES)
    return f" The reference reads what {reference} made, the suspect what {suspect} made."


def _kernels(pivot: dict[str, Any]) -> str:
    """How the kernels of the pivot differ, where device work was recorded and they do."""
    told = pivot.get("kernels")
    if told is None or told["how"] in ("equal", "none"):
        return ""
    return f" Its kernels: {_cut(device_words.kernels(told, 2), 400)}."


def _caveat(answer: dict[str, Any]) -> dict[str, Any] | None:
    """What keeps the place of a difference from being the place of a bug, if anything is known to."""
    return next((reason for reason in answer["reasons"] if reason["slug"] in _CAVEATS), None)


def _filters(answer: dict[str, Any]) -> list[str]:
    """What the filters did that were named; nothing where none was."""
    found = answer["filters"]
    if not found:
        return []
    said = [f"{terminal(rule['id'])} hid {rule['hits']}{' and was refused' if rule.get('refused') else ''}" for rule in found]
    more = f", and {len(found) - _FILTERS_SHOWN} more" if len(found) > _FILTERS_SHOWN else ""
    pairs = answer["compared"].get("filtered", {}).get("pairs", 0)
    return [f"filters     {', '.join(said[:_FILTERS_SHOWN])}{more}; {pairs} pairs of boundaries are hidden"]


def _named(answer: dict[str, Any]) -> list[str]:
    """What the named boundaries of both say; nothing where there are none."""
    told = answer.get("semantic")
    if told is None:
        return []
    facts = semantic_words.facts(told)
    place = (told["first"] or {}).get("suspect")
    at = f" | {_place(place)}" if place else ""
    more = f"; {'; '.join(facts)}" if facts else ""
    return [f"named       {_cut(semantic_words.sentence(told), 400)}{at}{_cut(more, 400)}"]


def _calls(answer: dict[str, Any]) -> list[str]:
    """Patterns of ``--callsites`` that named no call on either side: a name mistyped, or code that did not run."""
    ranks = [one.get("observed", {}).get("callsites") for side in answer["coverage"].values() for one in side.values()]
    told = [one["unused"] for one in ranks if one is not None]
    unused = sorted(set(told[0]).intersection(*told[1:])) if told else []
    return [f"calls       --callsites {_cut(', '.join(unused), 200)}: names no call that ran"] if unused else []


def _replayed(answer: dict[str, Any]) -> str:
    """How a replay of some steps came to be the answer; nothing when there was none."""
    located, narrow = answer.get("located"), answer.get("narrow")
    if located is not None and "replay" in located:
        steps = located["replay"]["steps"]
        return f"; found by the state after step {located['step']} and a replay of steps {steps[0]}:{steps[1]}"
    return f"; {terminal(narrow['text'])}" if narrow is not None else ""


def _offered(answer: dict[str, Any]) -> str:
    """What to run for a stronger answer."""
    return "; ".join(f"{' '.join(entry['options'])}: {terminal(entry['why'])}" for entry in answer.get("next", []))


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
        f"compared    {_compared(compared)}{_device_work(answer)}",
        f"differences {named}",
        f"limits      {' '.join(part for part in (_cut(answer['scope'].get('limit', ''), 200), _reasons(answer)) if part) or 'none'}",
    ]


def _device_work(answer: dict[str, Any]) -> str:
    """Which share of the device's work has a boundary; nothing where there was no device."""
    return f"; device work with a boundary: {_cut(device_words.in_short(answer['device_work']), 300)}" if "device_work" in answer else ""


def _compared(compared: dict[str, Any]) -> str:
    """Ranks, steps and share; of a sentinel, that only state was compared."""
    if "boundaries" not in compared:
        return ", ".join(f"{name} {_cut(str(compared[key]))}" for name, key in _COMPARED)
    kinds = ", ".join(compared["state_kinds"])
    left_out = f"; not comparable: {', '.join(compared['state_not_compared'])}" if compared["state_not_compared"] else ""
    return f"ranks {_cut(str(compared['ranks']))}, {len(compared['steps'])} steps: {compared['boundaries']} ({kinds}{left_out})"


def _inconclusive(answer: dict[str, Any]) -> list[str]:
    first = answer["reasons"][0]
    more = f"; also: {', '.join(reason['slug'] for reason in answer['reasons'][1:])}" if answer["reasons"][1:] else ""
    caveat = _caveat(answer)
    advice = first["fix"] if caveat is None else f"{caveat['fix']} Then: {first['fix']}"
    lines = [
        f"inconclusive {terminal(first['slug'])}: {_cut(first['text'], 300)}{terminal(more)}",
        f"next        {_cut(advice, 300)}",
        f"equal       {answer['prefix']['pairs']} pairs of boundaries before that",
    ]
    doubtful = [*answer.get("candidates", []), *answer["rank_firsts"]][:1]
    return [*lines, *(f"candidate   {_place(item['suspect'] or item['reference'])}{_cited(item)}" for item in doubtful)]


def _cited(item: dict[str, Any]) -> str:
    """The slot of a boundary and the evidence id under which it can be looked up."""
    side = next((name for name in ("suspect", "reference") if (item.get("seq") or {}).get(name) is not None), "")
    return f" | {terminal(item['slot'])} of {side}:{item['rank']}:{item['seq'][side]}" if side else ""


def _side(pivot: dict[str, Any], side: str) -> str:
    """A side's place, and where to look further.

    ``loss.backward()`` says little, so the forward work that an operator belongs to follows; for an operator that a side lacks,
    who reads there what it would have made.
    """
    place = pivot[side]
    if place is None:
        reader = next((near.get(side) for near in pivot["near"] if near["what"] == "first-consumer" and near["operator"] != _STATE), None)
        return _place(None) if reader is None else f"{_place(None)[:-1]}; {_place(reader)} reads what it would have made)"
    forward = (pivot["forward"] or {}).get(side)
    return _place(place) if forward is None or forward == place else f"{_place(place)}, backward of {_place(forward)}"


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
