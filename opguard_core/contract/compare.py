"""Compare two contracts. Pure: dictionaries in, differences out; never fails on a value."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from opguard_core.contract.parts import PARTS, differing_parts
from opguard_core.contract.spec import ACCELERATOR_FACTS, LATE_MARK, SEVERITIES, is_accelerators, is_late, rule_of

MAX_SHOWN = 80  # characters of a value in a sentence
_NUMBERED = re.compile(r"(?:loader|load|checkpoint)\.[0-9]+\.")
_NOT_READ = {"unknown": "the run ended before it could be read"}


@dataclass(frozen=True)
class Difference:
    """One fact that the two runs do not share.

    Attributes:
        key: Contract key.
        severity: One of ``spec.SEVERITIES``.
        reference: The reference run's value; None if it has none.
        suspect: The suspect run's value; None if it has none.
        why: What follows from it.
        shown: Whether the traces show what follows, see ``spec.Rule``.
    """

    key: str
    severity: str
    reference: Any
    suspect: Any
    why: str
    shown: bool = False

    def as_dict(self) -> dict[str, Any]:
        """The item of an answer's ``contract`` list."""
        record = asdict(self)
        del record["why"], record["shown"]
        return record

    @property
    def warns(self) -> bool:
        """Whether the runs cannot be expected to be equal because of this."""
        return self.severity == "arithmetic"

    @property
    def conflicts(self) -> bool:
        """Whether it explains an operator that gives other results for equal inputs, which no trace can decide."""
        return self.warns and not self.shown

    def sentence(self) -> str:
        """One line for people: key, both values, severity."""
        return f"{self.key}: reference {_shown(self.reference)}, suspect {_shown(self.suspect)} ({self.severity})"


def compare(reference: Mapping[str, Any], suspect: Mapping[str, Any]) -> list[Difference]:
    """Differences between two ranks' contracts, worst first, then by key.

    A value that could not be read on one side tells nothing about the run: that is a cosmetic difference, whatever the
    key. Unknown on both sides is no difference.

    Args:
        reference: The reference run's contract, as in a rank manifest.
        suspect: The suspect run's.
    """
    found = []
    reference, suspect = _folded(reference, suspect)
    accelerated = any(key.startswith(ACCELERATOR_FACTS) for key in (*map(str, reference), *map(str, suspect)))
    for key in sorted({str(key) for key in reference} | {str(key) for key in suspect}):
        one, other = _value(reference, key), _value(suspect, key)
        if _same(one, other) or (_unknown(one) and _unknown(other)):
            continue
        rule = rule_of(key)
        severity = "cosmetic" if _unknown(one) or _unknown(other) else rule.severity
        if severity in ("arithmetic", "order") and _is_idle(key, reference, suspect, accelerated=accelerated):
            severity = "environment"
        if rule.absent and severity != "cosmetic" and (one is None or other is None) and not (key in reference and key in suspect):
            severity = rule.absent
        if fnmatch.fnmatchcase(key, PARTS) and isinstance(one, Mapping) and isinstance(other, Mapping):
            one, other = differing_parts(one, other)
            if not one and not other:
                continue
        found.append(Difference(key, severity, one, other, rule.why, rule.shown))
    return sorted(found, key=lambda item: (SEVERITIES.index(item.severity), item.key))


def compare_ranks(reference: Mapping[int, Mapping[str, Any]], suspect: Mapping[int, Mapping[str, Any]]) -> list[Difference]:
    """Differences over all ranks that both runs have, each key once: as the lowest rank shows it.

    Args:
        reference: Contract by rank.
        suspect: Contract by rank.
    """
    found: dict[str, Difference] = {}
    for rank in sorted(set(reference) & set(suspect)):
        for difference in compare(reference[rank], suspect[rank]):
            known = found.get(difference.key)
            if known is None or SEVERITIES.index(difference.severity) < SEVERITIES.index(known.severity):
                found[difference.key] = difference
    return sorted(found.values(), key=lambda item: (SEVERITIES.index(item.severity), item.key))


def _folded(reference: Mapping[str, Any], suspect: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Contracts in which what only one side made or loaded is one fact instead of each of its settings."""
    sides = [{str(key): value for key, value in side.items()} for side in (reference, suspect)]
    made = [{found[0] for key in side if (found := _NUMBERED.match(key))} for side in sides]
    for side, other, only in ((0, 1, made[0] - made[1]), (1, 0, made[1] - made[0])):
        if LATE_MARK not in sides[other]:
            continue
        for prefix in only:
            keys = [key for key in sides[side] if key.startswith(prefix)]
            facts = {key.removeprefix(prefix): sides[side].pop(key) for key in keys}
            sides[side][f"{prefix}exists"] = {name: value for name, value in facts.items() if value is not None}
    return sides[0], sides[1]


def _is_idle(key: str, *sides: Mapping[str, Any], accelerated: bool) -> bool:
    """Whether a setting had nothing to work on in these runs."""
    if key == "seed.torch":
        return all(side.get("rng.drawn") is False for side in sides)
    if key == "forward.sdpa" and not accelerated:
        values = [side.get(key) for side in sides]
        shared = [{name: value[name] for name in ("flash", "math") if name in value} for value in values if isinstance(value, Mapping)]
        return len(shared) == len(values) and shared[0] == shared[1]
    return not accelerated and is_accelerators(key)


def _shown(value: Any) -> str:
    text = "absent" if value is None else value if isinstance(value, str) else repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}..."


def _value(contract: Mapping[str, Any], key: str) -> Any:
    if key not in contract and is_late(key) and LATE_MARK not in contract:
        return _NOT_READ
    return contract.get(key)


def _unknown(value: Any) -> bool:
    return isinstance(value, Mapping) and set(value) == {"unknown"}


def _same(one: Any, other: Any) -> bool:
    """Equality that tells True from 1 and holds for values of any kind, NaN included."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other) or (one != one and other != other)
