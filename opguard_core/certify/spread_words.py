"""The spread of a pivot in the words of the answer."""

from __future__ import annotations

from typing import Any

from opguard_core.certify.describe import Describer
from opguard_core.certify.findings import RankFindings
from opguard_core.certify.roots import Node
from opguard_core.certify.spreading import CONSUMERS_SHOWN, Consumer, Spreading, spreading
from opguard_core.certify.standing import Rows
from opguard_core.certify.statecompare import compare_state

NAMES_SHOWN = 8


def spread_of(found: RankFindings, words: Describer) -> dict[str, Any] | None:
    """How the pivot of a rank goes on, in the window where it shows; None where no window that both sides have shows it."""
    root = found.pivot[0]
    return spread_from(words, root.node, root.consumer)


def spread_from(
    words: Describer, start: Node, consumer: Node | None, shown: int = CONSUMERS_SHOWN, names: int = NAMES_SHOWN
) -> dict[str, Any] | None:
    """How a difference goes on.

    Args:
        words: Words for the rank pair; its timeline has streamed the windows of `start` and `consumer`.
        start: Where the difference begins.
        consumer: The boundary that first shows it, None where `start` does.
        shown: Consumers to name.
        names: Names of state to tell, of each kind.
    """
    timeline = words.timeline
    rows = Rows(timeline)
    told = None
    for number in dict.fromkeys(node.window for node in (start, consumer) if node is not None):
        if timeline.is_common(number):
            index = rows.index(number)
            told = spreading(index, compare_state(index.aligned), start, consumer, shown)
            if told.total or told.state:
                break
    return None if told is None else _as_dict(words, told, names)


def _as_dict(words: Describer, told: Spreading, shown: int) -> dict[str, Any]:
    return {
        "window": told.window,
        "total": told.total,
        "whole": not told.exhausted,
        "consumers": [_consumer(words, consumer) for consumer in told.consumers],
        "rejoined": None if told.rejoined is None else _consumer(words, told.rejoined),
        "reached": {what: words.bare(node) for what, node in told.reached.items()},
        "state": {kind: {"count": len(names), "names": sorted(names)[:shown]} for kind, names in sorted(told.state.items())},
    }


def _consumer(words: Describer, consumer: Consumer) -> dict[str, Any]:
    return {"slot": consumer.slot, "results": consumer.results.value, **words.bare(consumer.node)}
