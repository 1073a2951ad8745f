"""What is different about the two boundaries of a pair: arguments, precision, shapes and contents, as both traces have them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from opguard_core.errors import TraceFormatError
from opguard_core.ids import SIDES

if TYPE_CHECKING:
    from opguard_core.trace.reader import RankTrace
    from opguard_core.trace.schema import SlotRow

_SLOTS_SHOWN = 4
_KNOWN = ("probed", "carried")


def apart(boundary: dict[str, Any], traces: dict[str, str], ranks: dict[str, int]) -> dict[str, Any]:
    """Compare the two events of a pair.

    Args:
        boundary: A boundary of an answer that both sides have.
        traces: The trace of each side.
        ranks: The rank of each side.

    Returns:
        ``phase`` where it is another one; ``args``: values of each argument that differs, by name; ``slots``: what differs of each
        slot (its content as "bytes");
        ``random``: generator states, where they differ. Empty where a side has nothing or its trace has gone.
    """
    seqs = boundary.get("seq") or {}
    if any(seqs.get(side) is None for side in SIDES):
        return {}
    try:
        left, right = (_rank(Path(traces[side]), ranks[side]).event_at(seqs[side]) for side in SIDES)
    except (TraceFormatError, LookupError):
        return {}
    if left is None or right is None:
        return {}
    (reference, reference_slots), (suspect, suspect_slots) = left, right
    told: dict[str, Any] = {} if reference.phase == suspect.phase else {"phase": [reference.phase, suspect.phase]}
    if reference.args != suspect.args:
        told["args"] = _arguments(reference.args, suspect.args)
    if reference.operator != suspect.operator:
        told["operator"] = [reference.operator, suspect.operator]
    if (reference.rng_stream, reference.rng_before) != (suspect.rng_stream, suspect.rng_before):
        told["random"] = [_state(reference.rng_stream, reference.rng_before), _state(suspect.rng_stream, suspect.rng_before)]
    slots = _slots(reference_slots, suspect_slots)
    return {
        **told,
        **({"slots": slots[:_SLOTS_SHOWN]} if slots else {}),
        **({"slots_total": len(slots)} if len(slots) > _SLOTS_SHOWN else {}),
    }


def _rank(trace: Path, rank: int) -> RankTrace:
    from opguard_core.trace.reader import Run

    return Run.open(trace).ranks[rank]


def _arguments(reference: str, suspect: str) -> dict[str, list[str | None]]:
    """[reference, suspect] of each argument that differs; None where a side has no such argument."""
    left, right = (dict(_named(text)) for text in (reference, suspect))
    return {name: [left.get(name), right.get(name)] for name in [*left, *(set(right) - set(left))] if left.get(name) != right.get(name)}


def _named(text: str) -> list[tuple[str, str]]:
    """Arguments of canonical text, ``name=value`` joined by semicolons that stand in no bracket or quotation."""
    parts, depth, quote, begin = [], 0, "", 0
    for at, char in enumerate(text):
        if quote:
            quote = "" if char == quote and text[at - 1] != "\\" else quote
        elif char in "'\"":
            quote = char
        elif char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
        elif char == ";" and depth == 0:
            parts.append(text[begin:at])
            begin = at + 1
    parts.append(text[begin:])
    return [(name, value) for name, _, value in (part.partition("=") for part in parts if part)]


def _state(stream: str, state: int | None) -> str:
    return f"{stream} 0x{state:016x}" if stream and state is not None else stream or "none"


def _slots(reference: list[SlotRow], suspect: list[SlotRow]) -> list[dict[str, Any]]:
    """What differs of the slots that both have by name, results last as an operator lists them."""
    other = {slot.slot: slot for slot in suspect}
    found = []
    for slot in reference:
        partner = other.get(slot.slot)
        if partner is None:
            continue
        facts: dict[str, Any] = {
            key: [getattr(slot, key), getattr(partner, key)] for key in ("dtype", "shape") if getattr(slot, key) != getattr(partner, key)
        }
        known = slot.status in _KNOWN and partner.status in _KNOWN
        if known and slot.mix64 != partner.mix64:
            facts["bytes"] = "differ"
        if facts:
            found.append({"slot": slot.slot, **facts})
    return found
