"""Claims: which event made an autograd node is remembered, and the oldest half forgotten, by C++ as by Python."""

from __future__ import annotations

from random import Random  # noqa: TID251  a generator of its own
from typing import Any

from opguard_core.engines import lanes


def test_links_are_remembered_and_forgotten_alike(parts: Any, monkeypatch: Any) -> None:
    draw = Random(5)
    theirs, ours = lanes.Lane("main"), parts.Lane("main")
    node, nodes = 0, []
    for seq in range(2 * 2**18 + 700):
        node += draw.choice((1, 1, 1, 2, 3, 40 if seq % 999 == 0 else 1))
        nodes.append(node)
        for lane in (theirs, ours):
            lane.link(node, seq, f"aten::op{seq % 7}")
        if seq % 1000 == 0:  # a node that runs twice is made by the newer event
            again = nodes[-1 - draw.randrange(min(len(nodes), 900))]
            for lane in (theirs, ours):
                lane.link(again, seq, "aten::again")
    assert len(theirs.forward_of) == len(ours.forward_of)
    for known in (*draw.sample(nodes, 5000), *nodes[-3000:], 0, -1, 2**64 - 1, node + 1):
        assert theirs.forward_of.get(known) == ours.forward_of.get(known)
