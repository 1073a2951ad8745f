"""What filters hide on one rank pair, and what they were not allowed to hide; every difference counted once.

A boundary is hidden only if every slot of it that differs is named by some filter and none of it is protected. Of filters
that name the same slot the one that comes first by id gets the hit, so neither order nor a duplicate changes a count.
"""

from __future__ import annotations

from collections.abc import Sequence

from opguard_core.align.timeline import REFERENCE, SUSPECT, Timeline
from opguard_core.certify.describe import Describer
from opguard_core.certify.filters import Filter
from opguard_core.certify.protected import Protected
from opguard_core.certify.roots import Node
from opguard_core.certify.tally import MAX_SHOWN, Hidden, Refusal, Tally


class Hiding:
    """Filters at work on one rank pair.

    Args:
        timeline: Its windows.
        describer: Its places.
        rules: Filters, by id.
        tally: Filled while judging.
    """

    def __init__(self, timeline: Timeline, describer: Describer, rules: Sequence[Filter], tally: Tally) -> None:
        self._rules = rules
        self._describer = describer
        self._protected = Protected(timeline)
        self._tally = tally
        self._slots = frozenset(rule.slot for rule in rules)
        self._decided: dict[tuple[Node, frozenset[str]], bool] = {}
        self._hidden: set[Hidden] = set()
        self._hidden_nodes: set[Node] = set()
        self._refused: set[Node] = set()

    def hides(self, node: Node, slots: Sequence[str]) -> bool:
        """Whether filters hide a boundary; asked again about the same one, it counts once.

        Args:
            node: The boundary.
            slots: All slots of it that show the difference.
        """
        if not self._slots.intersection(slots):
            return False
        key = node, frozenset(slots)
        if key not in self._decided:
            places = self._describer.place(REFERENCE, node), self._describer.place(SUSPECT, node)
            operators = self._describer.operator(REFERENCE, node), self._describer.operator(SUSPECT, node)
            named = {slot: next((rule.id for rule in self._rules if rule.matches(places, operators, slot)), "") for slot in sorted(key[1])}
            if not any(named.values()):
                return False
            self._decided[key] = self._decide(node, named)
        return self._decided[key]

    def _decide(self, node: Node, named: dict[str, str]) -> bool:
        """Hide a boundary of which some slots are named, or do not; and count it.

        Args:
            node: The boundary.
            named: Filter by differing slot, empty where there is none.
        """
        ids = set(named.values()) - {""}
        what = self._protected.what(node, named)
        if what and node not in self._refused:
            self._refused.add(node)
            self._tally.refused.update(ids)
            for name in ids:
                self._tally.refusals.setdefault(name, Refusal(node, what))
        if what:
            return False
        if "" in named.values():
            self._tally.partly.update(ids)
            return False
        self._tally.pairs += node not in self._hidden_nodes
        self._hidden_nodes.add(node)
        for slot, name in named.items():
            hidden = Hidden(node, slot)
            if hidden in self._hidden:
                continue
            self._hidden.add(hidden)
            self._tally.hits[name] += 1
            if len(self._tally.shown.setdefault(name, [])) < MAX_SHOWN:
                self._tally.shown[name].append(hidden)
        return True
