"""Which of two states' tensors, by name, make the states different."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

PARTS = "load.*.parts"
"""Contract key of the tensors of a loaded state: what each name holds."""

MAX_NAMED = 16


def differing_parts(reference: Mapping[str, Any], suspect: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What either side has and the other has not under that name, at most `MAX_NAMED` of each.

    A tensor that both sides have under different names is none of it: a name is not what makes two trainings differ.

    Args:
        reference: What each name holds.
        suspect: Likewise.
    """
    sides = (dict(reference), dict(suspect))
    apart = [{name: value for name, value in own.items() if other.get(name) != value} for own, other in (sides, sides[::-1])]
    shared = Counter(map(str, apart[0].values())) & Counter(map(str, apart[1].values()))
    kept = [_without(found, Counter(shared)) for found in apart]
    names = sorted(set(kept[0]) | set(kept[1]))[:MAX_NAMED]
    first, second = ({name: found[name] for name in names if name in found} for found in kept)
    return first, second


def _without(found: Mapping[str, Any], renamed: Counter[str]) -> dict[str, Any]:
    """The entries less those that the other side has under another name."""
    kept = {}
    for name, value in found.items():
        if renamed[str(value)] > 0:
            renamed[str(value)] -= 1
        else:
            kept[name] = value
    return kept
