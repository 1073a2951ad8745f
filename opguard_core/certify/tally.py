"""Counts of what filters hid on one rank pair, and of what they named and could not hide."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from opguard_core.certify.roots import Node

MAX_SHOWN = 64
"""Hidden boundaries remembered per filter and rank pair; further ones are counted."""


class Hidden(NamedTuple):
    """One slot of a boundary that a filter named."""

    node: Node
    slot: str


class Refusal(NamedTuple):
    """A boundary that a filter named and that must not be hidden, and what it is."""

    node: Node
    what: str


@dataclass
class Tally:
    """Counts of one rank pair.

    Attributes:
        pairs: Boundaries hidden.
        hits: Differing slots hidden, by filter id.
        partly: Boundaries left visible because another slot of them differs as well, by filter id.
        refused: Boundaries that the filter named and that no filter may hide, by filter id.
        shown: Hidden slots, by filter id, in order.
        refusals: First refusal, by filter id.
    """

    pairs: int = 0
    hits: Counter[str] = field(default_factory=Counter)
    partly: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    shown: dict[str, list[Hidden]] = field(default_factory=dict)
    refusals: dict[str, Refusal] = field(default_factory=dict)
