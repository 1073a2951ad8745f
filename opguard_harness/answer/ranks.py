"""Ranks of the two sides: where a comparison paired unequal numbers, an answer names the suspect's and has the map."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opguard_core.ids import SIDES


def reference_ranks(answer: Mapping[str, Any]) -> dict[int, int]:
    """The reference's rank by the suspect's; empty where equal numbers are paired."""
    return {suspect: reference for reference, suspect in answer["compared"].get("rank_map", [])}


def rank_on(answer: Mapping[str, Any], side: str, rank: int) -> int:
    """The number that a rank of an answer has on one side.

    Args:
        answer: A comparison's.
        side: "reference" or "suspect".
        rank: The suspect's number, as boundaries of an answer have it.
    """
    return reference_ranks(answer).get(rank, rank) if side == SIDES[0] else rank
