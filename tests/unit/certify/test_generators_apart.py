"""Claim: generators of torch that end in different states are told beside `identical`; those that nobody seeds are not."""

from __future__ import annotations

import pytest

from opguard_core.certify.compare import compare
from opguard_core.trace.schema import SlotRow
from tests.support.memory import MemoryTrace, MemoryWriter, memory_run
from tests.support.synthetic import Corrupt, GptShape, Side, emit_side, gpt

SHAPE = GptShape(layers=1, width=8, tokens=4, vocabulary=16, steps=2)


def run(states, side=None):
    """A run whose state boundaries hold generators: ``states[name]`` gives the state at the end of each step."""
    writer = MemoryWriter(mode="verify")
    emit_side(side or gpt(SHAPE), writer, mode="verify")
    ends = [event.seq for event in writer.rows["events"] if event.kind == "state"]
    for step, seq in enumerate(ends):
        at = max(row for row, slot in enumerate(writer.rows["slots"]) if slot.seq == seq) + 1
        writer.rows["slots"][at:at] = [
            SlotRow(seq, f"rng:{name}", "in", "probed", "uint64", "", "", "cpu", None, 0, 8, None, 8, *[values[step]] * 3, 0, True, "")
            for name, values in states.items()
        ]
    return memory_run([MemoryTrace(writer, writer.close(ended="exit"))])


def told(verdict):
    return [(entry.slug, entry.text) for entry in verdict.reasons if entry.slug == "generators-apart"]


@pytest.mark.parametrize(
    ("reference", "suspect", "names"),
    [
        ({"cpu": [1, 2]}, {"cpu": [1, 2]}, ""),
        ({"cpu": [1, 2]}, {"cpu": [1, 3]}, "cpu on rank 0"),
        ({"cpu": [1, 2], "cpu#1": [5, 6]}, {"cpu": [1, 3], "cpu#1": [5, 7]}, "cpu on rank 0, cpu#1 on rank 0"),
        ({"cpu": [1, 2]}, {"cpu": [4, 2]}, ""),  # apart in between, and together again
        ({"python": [1, 2], "numpy": [1, 2]}, {"python": [3, 4], "numpy": [5, 6]}, ""),
        ({"cpu": [1, 2]}, {"cpu#1": [1, 3]}, ""),  # another generator: nothing to compare with
    ],
)
def test_only_the_end_counts(reference, suspect, names):
    verdict = compare(run(reference), run(suspect))
    assert verdict.verdict == "identical"
    assert [text for _, text in told(verdict) if f"({names})" in text] == [text for _, text in told(verdict)]
    assert bool(told(verdict)) == bool(names)


def test_it_is_no_news_where_the_sides_differ_already():
    program = gpt(SHAPE)
    side = Side(program, [Corrupt(program.find(1, operator="aten.gelu.default")[0])])
    verdict = compare(run({"cpu": [1, 2]}), run({"cpu": [1, 3]}, side))
    assert verdict.verdict == "diverged"
    assert told(verdict) == []
