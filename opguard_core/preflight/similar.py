"""How alike two site keys are: is the one the other after a refactoring?

Renaming a local changes the expression but not its form; extracting a helper changes the function; a wrapper changes the
module path. What a boundary does (operator) stays, and what it does it to (tensors) and when (phase) nearly always do.
"""

from __future__ import annotations

import re
from functools import lru_cache

from opguard_core.plan.document import SiteKey

ENOUGH = 0.5
"""Least score of a site that moved: operator, tensors and phase alone make 0.55."""

_TENSORS, _PHASE, _MODULE, _FUNCTION, _TEXT = 0.4, 0.15, 0.15, 0.1, 0.2
_SAME_FORM = 0.8  # of the share of the text, for an expression that differs in names and numbers only
_WORD = re.compile(r"[A-Za-z_]\w*|\d[\w.]*|[^\w\s]")


def likeness(one: SiteKey, other: SiteKey) -> float:
    """Score from 0 to 1; 0 for different operators.

    Args:
        one: A site.
        other: Another site.
    """
    if one.operator != other.operator:
        return 0.0
    score = _TENSORS * _share(one.tensors, other.tensors) + _TEXT * _texts(one.text, other.text)
    score += _PHASE * (one.phase == other.phase) + _MODULE * (one.module == other.module) + _FUNCTION * (one.function == other.function)
    return round(score, 3)


def _share(one: tuple[str, ...], other: tuple[str, ...]) -> float:
    """1 for equal tensors; half of it for the same kinds of tensors with other sizes."""
    if one == other:
        return 1.0
    kinds = [[text.partition("[")[0] + str(text.count(",")) for text in side] for side in (one, other)]
    return 0.5 if kinds[0] == kinds[1] else 0.0


@lru_cache(maxsize=1 << 16)
def _texts(one: str, other: str) -> float:
    if one == other:
        return 1.0
    left, right = words(one), words(other)
    if [form(word) for word in left] == [form(word) for word in right]:
        return _SAME_FORM
    shared = set(left) & set(right)
    return _SAME_FORM * len(shared) / max(1, len(set(left) | set(right)))


def words(text: str) -> list[str]:
    """Names, numbers and signs of an expression."""
    return _WORD.findall(text)


def form(word: str) -> str:
    """A word without its name or value."""
    return "name" if word[0].isalpha() or word[0] == "_" else "number" if word[0].isdigit() else word
