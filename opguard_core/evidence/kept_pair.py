"""One boundary of both sides, kept in full: every slot fingerprinted again, then compared byte by byte.

A slot whose bytes are not the ones that the trace fingerprinted is said and not compared: it shows our mistake, or a tensor that was
changed while it was copied, not the program's difference.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from opguard_core.evidence.damage import Damage, describe
from opguard_core.evidence.fingerprint_again import Again, again
from opguard_core.ids import SIDES
from opguard_core.trace.kept import Kept

FORMAT = 1
MAX_DESCRIBED = 16
"""Slots that are described; an update of a whole model has hundreds."""

MAX_LISTED = 512
MAX_ARGS = 2_000
EQUAL, DIFFERENT, MISMATCH, MISSING = "equal", "different", "not compared", "not there"
_RNG = "rng"

Digests = Mapping[str, int]
"""mix64 of slots, as a trace has them."""


@dataclass(frozen=True)
class Compared:
    """One slot of both sides.

    Attributes:
        slot: Its name.
        state: EQUAL, DIFFERENT, MISMATCH (bytes are not what was fingerprinted) or MISSING (a side has no bytes of it).
        why: Of the last two, in words.
        again: The second fingerprint of each side that has bytes.
        damage: What differs; None where nothing was described.
    """

    slot: str
    state: str
    why: str
    again: dict[str, Again]
    damage: Damage | None = None

    def as_dict(self) -> dict[str, Any]:
        """Plain form for JSON."""
        facts: dict[str, Any] = {"slot": self.slot, "state": self.state}
        if self.why:
            facts["why"] = self.why
        facts["fingerprints"] = {side: found.as_dict() for side, found in self.again.items()}
        if self.damage is not None:
            facts["damage"] = self.damage.as_dict()
        return facts


def compare_kept(kept: tuple[Kept | None, Kept | None], recorded: tuple[Digests, Digests], *, alone: bool = True) -> list[Compared]:
    """Compare all slots that a side has, results and written arguments first.

    Args:
        kept: Reference and suspect; None where a side kept no such boundary.
        recorded: Digests that the traces have of their slots.
        alone: A side that kept no such boundary has none.

    Cost: bounded by the bytes kept; see `describe`.
    """
    names = list(dict.fromkeys(name for one in kept if one is not None for name in one.known if name != _RNG))
    names.sort(key=lambda name: name.startswith(("in.", "kw.")))
    found: list[Compared] = []
    described = 0
    for name in names[:MAX_LISTED]:
        one = _compare(name, kept, recorded, describe_it=described < MAX_DESCRIBED, alone=alone)
        described += one.state == DIFFERENT
        found.append(one)
    return found


def _compare(
    name: str, kept: tuple[Kept | None, Kept | None], recorded: tuple[Digests, Digests], *, describe_it: bool, alone: bool
) -> Compared:
    """One slot."""
    checks: dict[str, Again] = {}
    for side, one, digests in zip(SIDES, kept, recorded, strict=True):
        if one is not None and name in one.slots and name in digests:
            checks[side] = again(one.slots[name], digests[name])
    wrong = [side for side, check in checks.items() if not check.equal]
    if wrong:
        text = f"the bytes kept of the {' and of the '.join(wrong)} are not the ones that the trace fingerprinted"
        return Compared(name, MISMATCH, text, checks)
    missing = [
        _missing(side, one, name, alone=alone) for side, one in zip(SIDES, kept, strict=True) if one is None or name not in one.slots
    ]
    if missing:
        return Compared(name, MISSING, "; ".join(missing), checks)
    reference, suspect = (one.slots[name] for one in kept if one is not None)
    unknown = [side for side in SIDES if side not in checks]
    why = f"the trace has no digest of the {' and of the '.join(unknown)}" if unknown else ""
    if not describe_it:
        same = (reference.dtype, reference.shape, bytes(reference.data)) == (suspect.dtype, suspect.shape, bytes(suspect.data))
        return Compared(name, EQUAL if same else DIFFERENT, why or ("" if same else "one of many; not described"), checks)
    assert kept[1] is not None
    inputs = {slot: block for slot, block in kept[1].slots.items() if slot.startswith(("in.", "kw.")) and slot != name}
    damage = describe(reference, suspect, inputs if not name.startswith(("in.", "kw.")) else None)
    return Compared(name, EQUAL if damage.likely == "none" else DIFFERENT, why, checks, None if damage.likely == "none" else damage)


def _missing(side: str, kept: Kept | None, name: str, *, alone: bool) -> str:
    if kept is None:
        return f"the {side} {'has' if alone else 'kept'} no such boundary"
    slot = kept.known.get(name)
    return f"the {side} has no such slot" if slot is None else f"bytes of the {side} were not kept: {slot.reason}"


def effect_of(kept: tuple[Kept | None, Kept | None]) -> tuple[str, Damage] | None:
    """What an operator that one side alone runs makes of its first input: its result against that.

    Returns:
        The side, and its result as damage of its input; None where both sides have the boundary, or its bytes say nothing.
    """
    present = [(side, one) for side, one in zip(SIDES, kept, strict=True) if one is not None]
    if len(present) != 1:
        return None
    ((side, only),) = present
    given, result = only.slots.get("in.0"), only.slots.get("out.0", only.slots.get("mut.0"))
    if given is None or result is None:
        return None
    damage = describe(given, result)
    rule = damage.rule.replace("the reference", "its in.0").replace("the suspect", "its result")
    return side, replace(damage, rule=rule)


def main_of(found: list[Compared], slot: str) -> Compared | None:
    """The slot that stands for the boundary: the one asked for if its bytes differ, else the first that do, else the one asked for.

    Args:
        found: As compared.
        slot: The slot that the verdict names; may be empty.
    """
    named = [one for one in found if one.slot == slot and one.state != EQUAL]
    telling = [one for one in (*named, *found) if one.state == DIFFERENT] or [one for one in (*named, *found) if one.state == MISMATCH]
    return next(iter([*telling, *named]), None)


def telling_slot(kept: tuple[Kept | None, Kept | None], slot: str) -> str:
    """The slot to ask `main_of` for: the one that the verdict names, unless two different operators read under that name."""
    operators = {one.boundary.operator for one in kept if one is not None}
    return "" if len(operators) > 1 and slot.startswith(("in.", "kw.")) else slot


def document(kept: tuple[Kept | None, Kept | None], found: list[Compared], slot: str, *, alone: bool) -> dict[str, Any]:
    """All of it as plain data for JSON, bounded.

    Args:
        kept: As compared.
        found: What came of it.
        slot: The slot that the verdict names; may be empty.
        alone: One side alone runs the boundary; where both do, a side that kept nothing says nothing about the operator.
    """
    sides = {
        side: {"operator": one.boundary.operator, "seq": one.seq, "args": one.args[:MAX_ARGS], "seal": one.seal}
        for side, one in zip(SIDES, kept, strict=True)
        if one is not None
    }
    main = main_of(found, telling_slot(kept, slot))
    states = [one.state for one in found]
    effect = effect_of(kept) if alone else None
    texts = {(one.boundary.operator, one.args) for one in kept if one is not None}
    return {
        "format": FORMAT,
        "boundary": sides,
        "same_call": len(texts) == 1 and len(sides) == len(SIDES),
        "main": "" if main is None else main.slot,
        "counts": {state: states.count(state) for state in (EQUAL, DIFFERENT, MISMATCH, MISSING) if state in states},
        "slots": [one.as_dict() for one in found],
        **({} if effect is None else {"effect": {"side": effect[0], "damage": effect[1].as_dict()}}),
    }
