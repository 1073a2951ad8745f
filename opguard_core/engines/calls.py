"""One operator in flight, as the dispatch engine keeps it between the look before and the look after."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from opguard_core.engines.lanes import Lane
from opguard_core.engines.operators import OperatorPlan
from opguard_core.engines.outbox import Entry
from opguard_core.ids import Phase
from opguard_core.trace.schema import EventRow, SlotRow

if TYPE_CHECKING:
    from opguard_core.engines.outside_rows import Open
    from opguard_core.engines.rank import RankContext

_DATA = Phase.DATA.value


class Call:
    """One operator in flight: what was seen before it ran. Holds no tensor."""

    __slots__ = (
        "args_text",
        "closeup",
        "entry",
        "failed",
        "generator",
        "header",
        "outer",
        "phase",
        "plan",
        "rng_before",
        "rng_stream",
        "slots",
        "touches_gradient",
    )

    def __init__(self, plan: OperatorPlan, entry: Entry) -> None:
        self.plan, self.entry = plan, entry
        self.slots: list[SlotRow] = []
        self.rng_stream = ""
        self.rng_before: int | None = None
        self.phase = _DATA
        self.args_text = ""
        self.generator: Any = None
        self.touches_gradient = False
        self.failed = ""
        self.header: tuple[Any, ...] = ()
        self.outer: int | None = None  # what the launch shim had in flight before
        self.closeup: Any = None  # place and occurrence, if this run looks at it more closely


class Bookkeeping:
    """Stands for a call that gives no event but changes what we know of a storage."""

    __slots__ = ("plan",)

    def __init__(self, plan: OperatorPlan) -> None:
        self.plan = plan


def event_of(
    context: RankContext, lane: Lane, call: Call | Open, kind: str, operator: str, slots: Sequence[SlotRow], seq: int, text: str
) -> EventRow:
    """The event of a call, by what was seen of its place before it ran.

    Args:
        context: The rank.
        lane: The thread it ran on.
        call: Its ``header`` is filled.
        kind: One of ``ids.Kind``.
        operator: Its full name.
        slots: Its slots, which say on which device it ran.
        seq: Its number.
        text: Canonical arguments, or why it is a gap.
    """
    now_ns, clock, window, microbatch, phase, module, node, forward_seq, stack, grad_enabled = call.header
    return EventRow(
        seq,
        kind,
        operator,
        now_ns,
        None,
        None if context.streams is None else context.streams.of(slots),
        lane.role,
        context.lanes.number(lane) if lane.index is None else lane.index,
        clock,
        window,
        microbatch,
        phase,
        module,
        node,
        forward_seq,
        stack.stack,
        stack.user_frame,
        stack.library_frame,
        text,
        call.rng_stream,
        call.rng_before,
        grad_enabled,
    )
