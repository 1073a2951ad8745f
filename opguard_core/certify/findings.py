"""What was found on one rank pair, before it is put into words."""

from __future__ import annotations

from dataclasses import dataclass, field

from opguard_core.certify.devicework.exposed import Exposed
from opguard_core.certify.roots import Node, Root
from opguard_core.certify.tally import Tally


@dataclass(frozen=True)
class Harmless:
    """A pair that differs and of which nothing that counts was reached in its window.

    Attributes:
        node: The pair.
        slot: First differing output.
        first: No differing input of it came from another harmless pair.
        confidence: Of the pair.
        origin: Why it differs, empty when its cause lies further up.
    """

    node: Node
    slot: str
    first: bool
    confidence: int
    origin: str = ""


@dataclass
class Shares:
    """How much of one window found a counterpart.

    Attributes:
        window: Window number.
        telling: Events with non-trivial results, reference and suspect.
        paired: Of those, events with a partner.
        accounted: Of those, events whose results the other side has as well, by a pair or by content.
        floating: Matched floating-point results of the model.
        recast: Of those, results that the other side has in another precision.
    """

    window: int
    telling: tuple[int, int]
    paired: tuple[int, int]
    accounted: tuple[int, int]
    floating: int = 0
    recast: int = 0


@dataclass
class Prefix:
    """What is equal before the first difference (or everywhere)."""

    pairs: int = 0
    tensors: int = 0
    bytes: int = 0


@dataclass
class RankFindings:
    """Everything one rank pair has to say.

    Attributes:
        rank: Suspect rank (the reference's is `reference_rank`).
        reference_rank: Reference rank.
        pivot: Root of the first difference that matters, and other roots of the same difference.
        rivals: Pairs that fit as well as the pivot and would name another expression.
        on_trust: What the pivot claims rests on work that the mode did not look into.
        split_update: The pivot is an update that may stand in another step on the other side.
        cut_apart: Both sides make the same updates, and the step of the pivot does not hold the same ones on both.
        optimizers: Optimizers made so far, by side.
        first_consumers: First pairs whose reads differ because of it.
        clock: When the pivot happens, by collectives: twice those begun before it, one more for a collective's own result.
        harmless: Differences that reached nothing, in order.
        harmless_more: Number of further ones.
        unresolved: Harmless ones that are still alive at the end.
        weak: Slugs and nodes of differences that reach something that counts but cannot carry a verdict.
        shares: Coverage by window.
        prefix: Equal part.
        windows: Windows both sides have.
        completed: Windows both sides completed.
        one_sided: Windows only one side has: reference, suspect.
        resumed: Window at which each side goes on from an earlier run; None for a side that began at its first.
        reads: Values that left for Python, compared equal.
        updates: Parameters whose state at the end of a window was compared equal.
        state_slots: State slots compared equal.
        state_missing: Windows without a state boundary, by side.
        state_unmatched: Windows at whose end only one side has some parameters: (window, reference names, suspect names).
        drawn_apart: Generators of torch that both sides have in different states at the end of the last window compared.
        gaps: Gap events in front of the pivot, by side.
        dropped: Records lost in front of the pivot, by side.
        last_seq: Event of the pivot, or the last one looked at, by side.
        banded: Gaps paired in a band only.
        pairs: Pairs over all windows looked at.
        exposed: Stretches in which work that nothing attributed may have written what the pivot read.
        filtered: What filters hid, and what they were not allowed to hide.
    """

    rank: int
    reference_rank: int
    pivot: list[Root] = field(default_factory=list)
    rivals: list[Node] = field(default_factory=list)
    on_trust: bool = False
    split_update: bool = False
    cut_apart: bool = False
    optimizers: list[int] = field(default_factory=lambda: [0, 0])
    first_consumers: list[Node] = field(default_factory=list)
    clock: int = 0
    harmless: list[Harmless] = field(default_factory=list)
    harmless_more: int = 0
    unresolved: list[Harmless] = field(default_factory=list)
    weak: list[tuple[str, Node]] = field(default_factory=list)
    shares: list[Shares] = field(default_factory=list)
    prefix: Prefix = field(default_factory=Prefix)
    windows: list[int] = field(default_factory=list)
    completed: list[int] = field(default_factory=list)
    one_sided: tuple[list[int], list[int]] = field(default_factory=lambda: ([], []))
    resumed: tuple[int | None, int | None] = (None, None)
    reads: int = 0
    updates: int = 0
    state_slots: int = 0
    state_missing: tuple[list[int], list[int]] = field(default_factory=lambda: ([], []))
    state_unmatched: list[tuple[int, list[str], list[str]]] = field(default_factory=list)
    drawn_apart: list[str] = field(default_factory=list)
    gaps: list[int] = field(default_factory=lambda: [0, 0])
    dropped: list[int] = field(default_factory=lambda: [0, 0])
    last_seq: list[int] = field(default_factory=lambda: [0, 0])
    banded: int = 0
    pairs: int = 0
    exposed: list[Exposed] = field(default_factory=list)
    filtered: Tally = field(default_factory=Tally)
