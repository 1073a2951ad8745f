"""What the operators of both traces say about a named call: which parameters it read, and who else reads what it got.

Looks at the window of one call on each side, and only for the first difference.
"""

from __future__ import annotations

import numpy as np

from opguard_core.certify.semantic.records import Call
from opguard_core.ids import Direction, Kind, Phase, Status
from opguard_core.trace.reader import RankTrace
from opguard_core.trace.schema import SlotRow
from opguard_core.trace.window import WindowTable

EQUAL, UNEQUAL, NONE, UNKNOWN = "equal", "unequal", "none", "unknown"
_PARAMETER = "param:"


def parameters(traces: tuple[RankTrace, RankTrace], calls: tuple[Call, Call]) -> str:
    """Whether the parameters that two calls read have the same bytes, whatever their names.

    Returns:
        `EQUAL`; `UNEQUAL` (also where one side keeps several in one tensor); `NONE` if neither read any; `UNKNOWN`.
    """
    read = [_parameters(trace.window(call.first.event.window), call) for trace, call in zip(traces, calls, strict=True)]
    if None in read:
        return UNKNOWN
    if not any(read):
        return NONE
    return EQUAL if read[0] == read[1] else UNEQUAL


def _parameters(table: WindowTable | None, call: Call) -> list[int] | None:
    """Digests of the parameters that operators read during a call, each once; None where one of them was not looked at."""
    if table is None or not call.exit:
        return None
    seqs = table.events["seq"]
    first, last = np.searchsorted(seqs, [call.seq, call.exit[-1].seq])
    found: dict[str, int] = {}
    for row in range(int(table.slot_start[first]), int(table.slot_start[last])):
        name = table.strings["name"][int(table.slots["name"][row])]
        if (
            name.startswith(_PARAMETER)
            and name not in found
            and table.strings["direction"][int(table.slots["direction"][row])] == Direction.IN
        ):
            if table.strings["status"][int(table.slots["status"][row])] not in (Status.PROBED, Status.CARRIED):
                return None
            found[name] = int(table.slots["mix64"][row])
    return sorted(found.values())


def is_read_elsewhere(traces: tuple[RankTrace, RankTrace], calls: tuple[Call, Call], slots: tuple[SlotRow, SlotRow]) -> bool:
    """Whether, on either side, an operator outside a call reads a tensor that the call got: then its gradient has further parts."""
    return any(
        _read_elsewhere(trace.window(call.first.event.window), call, slot) for trace, call, slot in zip(traces, calls, slots, strict=True)
    )


def _read_elsewhere(table: WindowTable | None, call: Call, slot: SlotRow) -> bool:
    if table is None or slot.storage is None or not call.exit:
        return False
    slots, events, strings = table.slots, table.events, table.strings
    rows = slots["storage"] == slot.storage
    rows &= (slots["extent_lo"] < slot.extent_hi) & (slots["extent_hi"] > slot.extent_lo)
    rows &= slots["direction"] == strings["direction"].code(Direction.IN)
    if slot.version is not None:
        rows &= slots["version"] == slot.version
    event = np.repeat(np.arange(len(table)), np.diff(table.slot_start))[rows]
    outside = (events["seq"][event] < call.seq) | (events["seq"][event] > call.exit[-1].seq)
    outside &= events["kind"][event] == strings["kind"].code(Kind.OPERATOR)
    outside &= np.isin(events["phase"][event], [strings["phase"].code(phase) for phase in (Phase.FORWARD, Phase.DATA)])
    return bool(outside.any())
