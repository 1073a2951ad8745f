"""Keep answers small: take as much of a list as fits, and say less in steps until an answer fits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from opguard_harness.answer.plain import dumps

T = TypeVar("T")


def within(items: Iterable[T], limit_chars: int) -> list[T]:
    """The first items whose JSON text together stays within the limit.

    Args:
        items: Values with a plain form.
        limit_chars: Characters of JSON text.
    """
    taken: list[T] = []
    used = 0
    for item in items:
        used += len(dumps(item)) + 2
        if used > limit_chars:
            break
        taken.append(item)
    return taken


def first_fitting(levels: Sequence[int], build: Callable[[int], T], limit_chars: int) -> T:
    """The first of several ever shorter answers that fits; the last one whether it fits or not.

    Args:
        levels: What ``build`` is called with, the fullest answer first.
        build: Makes the answer of one level.
        limit_chars: Characters of JSON text.
    """
    answer = build(levels[0])
    for level in levels[1:]:
        if len(dumps(answer)) <= limit_chars:
            break
        answer = build(level)
    return answer
