"""How sure a verdict is, point by point: what speaks for it, and what to keep in mind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import floor
from typing import Any

from opguard_core.ids import SIDES
from opguard_harness.interface.declaration import Evidence
from opguard_harness.report import device_words, semantic_words
from opguard_harness.report.transplant_words import sentence
from opguard_harness.workspace.findings import Finding

GOOD, NOTE, WARN = "good", "note", "warn"

Findings = Sequence[tuple[Finding, list[Evidence]]]


def confidence(
    answer: Mapping[str, Any],
    confirmed: Mapping[str, Any] | None,
    sides: Mapping[str, Mapping[str, Any]] | None = None,
    findings: Findings = (),
) -> list[dict[str, str]]:
    """Points in the order a sceptic would ask for them, in words of ours: only what speaks for the place or against it.

    Args:
        answer: As computed now.
        confirmed: What a replay showed, None without one.
        sides: What each run was, with how much of it was compared.
        findings: Of the case.
    """
    compared, pivot = answer["compared"], answer["pivot"]
    points = [_equal_before(answer)]
    if pivot is not None:
        points += _replay(confirmed)
    points += _recomputed(answer)
    if pivot is not None:
        points += [*([_reach(sides)] if sides else []), *_origin(answer)]
    shares = {side: value for side, value in compared["paired_share"].items() if value is not None}  # mode sentinel pairs nothing
    if shares:
        text = ", ".join(f"{_percent(value)} of the {side}'s" for side, value in shares.items())
        least = min(shares.values())
        points.append((GOOD if least == 1 else NOTE if least >= 0.9 else WARN, f"Boundaries that found a partner: {text}."))
    points += _device_work(answer)
    points += _semantic(answer)
    arithmetic = sum(item["severity"] == "arithmetic" for item in answer["contract"])
    if arithmetic:
        points.append((WARN, f"{arithmetic} settings that change arithmetic differ between the sides."))
    hidden = compared.get("filtered", {}).get("pairs", 0)
    if answer["filters"]:
        points.append((WARN if hidden else NOTE, f"{len(answer['filters'])} benign filters were in force; they hid {hidden} pairs."))
    loose = sum(bool(item.unchecked) for item, _ in findings)
    if loose:
        points.append((WARN, f"{loose} findings say numbers that nothing they cite shows; each is marked."))
    points += [(WARN, f"Limit: {reason['slug']} (told below).") for reason in answer["reasons"]]
    return [{"level": level, "text": text} for level, text in points]


def _device_work(answer: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Which share of the device's work has a boundary."""
    work = answer.get("device_work")
    if work is None:
        return []
    whole = all(device_words.is_whole(work[side]) for side in SIDES)
    loose = any(rank["watched"] and rank["touching"] for side in SIDES for rank in work[side].values())
    counts = [f"{_percent(own / every)} of the {side}'s {every:,} launches" for side, own, every in _launches(work) if every]
    unseen = [side for side in SIDES if any(not rank["watched"] for rank in work[side].values())]
    told = [f"Device work with a boundary: {', '.join(counts)}."] if counts else []
    told += [f"Device work of the {' and of the '.join(unseen)} was not recorded on every rank."] if unseen else []
    return [(GOOD if whole else WARN if loose else NOTE, " ".join(told))] if told else []


def _semantic(answer: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What named boundaries say beside the operators."""
    told = answer.get("semantic")
    if told is None:
        return []
    level = GOOD if told["outcome"] == "equal" else NOTE if told["outcome"] == "differs" else WARN
    return [(level, f"Named boundaries, which change nothing of the verdict: {semantic_words.sentence(told)}.")]


def _launches(work: Mapping[str, Any]) -> list[tuple[str, int, int]]:
    """Of each side the launches with a boundary, and all."""
    watched = {side: [rank for rank in work[side].values() if rank["watched"]] for side in SIDES}
    return [(side, *(sum(rank[key] for rank in ranks) for key in ("attributed", "launches"))) for side, ranks in watched.items()]


def _reach(sides: Mapping[str, Mapping[str, Any]]) -> tuple[str, str]:
    """How far the comparison goes: it ends with the step of the first difference."""
    shares = {side: told["reached"] / told["events"] if told["events"] else 1.0 for side, told in sides.items()}
    part = ", ".join(f"{_percent(share)} of what the {side} recorded" for side, share in shares.items())
    return NOTE, f"The comparison ends with the step of the first difference: {part}. Nothing is said about what comes after it."


def _recomputed(answer: Mapping[str, Any]) -> list[tuple[str, str]]:
    if "located" not in answer and "narrow" not in answer:
        return []
    return [(NOTE, "What an earlier replay added to this verdict is told as it was stored; the rest was computed again from the traces.")]


def _equal_before(answer: Mapping[str, Any]) -> tuple[str, str]:
    prefix, bits = answer["prefix"], answer["compared"].get("digest_bits", 64)
    where = "before it " if answer["pivot"] is not None else ""
    text = (
        f"{prefix['pairs']:,} pairs of boundaries {where}are equal, {prefix['tensors']:,} tensors of {prefix['bytes']:,} bytes, "
        f"by {bits}-bit digests of their bytes."
    )
    return (GOOD if prefix["pairs"] else NOTE), text


def _replay(confirmed: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """What the replays say for the place or against it; how many there are is said with it."""
    if confirmed is None:
        return [_unconfirmed(confirmed)]
    if confirmed["outcome"] != "same place":
        several = _others(confirmed) if sum(confirmed["replays"].values()) > 1 else []
        return [_unconfirmed(confirmed), *several, *_transplants(confirmed["transplant"])]
    return [
        (GOOD, "Confirmed: in a replay of both sides in private copies the difference came again, at the same place."),
        *_others(confirmed),
        *_transplants(confirmed["transplant"]),
    ]


def _others(confirmed: Mapping[str, Any]) -> list[tuple[str, str]]:
    """How all replays ended: one alone may be chance, and several may contradict each other."""
    counts = confirmed["replays"]
    total = sum(counts.values())
    if total == 1:
        return [(NOTE, "That is a single replay; confirm_difference with another token makes one more.")]
    listed = ", ".join(f"{outcome} {count}" for outcome, count in counts.items())
    return [(NOTE if len(counts) == 1 else WARN, f"There are {total} replays: {listed}.")]


def _transplants(found: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """Whether all that differs goes through the first difference, where that was tried."""
    if found is None:
        return []
    if found["elsewhere"]:
        return [(NOTE, "The transplants that were made are about the difference of a replay, which is at another place.")]
    level = {"cause": GOOD, "several causes": WARN, "not all": WARN}.get(found["outcome"], NOTE)
    return [(level, " ".join(part for part in (sentence(found), found["why"]) if part))]


def _unconfirmed(confirmed: Mapping[str, Any] | None) -> tuple[str, str]:
    if confirmed is None:
        return WARN, "Not replayed yet: confirm_difference runs both sides once more and compares the bytes themselves."
    if not confirmed["verdict"]:
        return WARN, "A replay was started and came to no answer: it neither confirms nor denies the difference."
    if confirmed["verdict"] == "inconclusive":
        return WARN, "A replay of both sides could not be judged: it neither confirms nor denies the difference."
    return {
        "another place": (WARN, "In a replay of both sides the difference came at another place: a race, or something outside."),
        "not reproduced": (WARN, "In a replay of both sides the difference did not come again: a race, hardware, or something outside."),
    }[confirmed["outcome"]]


def _origin(answer: Mapping[str, Any]) -> list[tuple[str, str]]:
    pivot = answer["pivot"]
    if not pivot["origin_alternatives"]:
        return []
    others = ", ".join(pivot["origin_alternatives"])
    return [(WARN, f"The origin is {pivot['origin']}, and mode {answer['mode']} could not rule out: {others}.")]


def _percent(share: float) -> str:
    """Rounded down, so that only all of them are 100%."""
    return f"{floor(1000 * share + 1e-9) / 10:.1f}%"
