"""Claims: the same state under each other's names is no verdict, and neither is an update that an optimizer of its own may do in
the next step; a value that is wrong is one all the same."""

from __future__ import annotations

import pytest

from opguard_core.certify.compare import compare
from opguard_core.ids import Kind, Marker
from tests.support.memory import MemoryTrace, MemoryWriter, memory_run
from tests.support.synthetic import Delete, GptShape, Side, emit_side, gpt

SHAPE = GptShape(layers=1, width=8, tokens=4, vocabulary=16, steps=3)


def written(side=None):
    writer = MemoryWriter(mode="verify")
    emit_side(side or gpt(SHAPE), writer, mode="verify")
    return writer


def run(writer):
    return memory_run([MemoryTrace(writer, writer.close(ended="exit"))])


def exchange(writer, *, spoil=False):
    """Let two parameters of one shape have each other's names in every state event."""
    rows = writer.rows["slots"]
    states = {event.seq for event in writer.rows["events"] if event.kind == "state"}
    shapes = {}
    for slot in rows:
        if slot.seq in states and slot.slot.startswith("param:"):
            shapes.setdefault((slot.shape, slot.seq), []).append(slot.slot)
    first, second = next(names for names in shapes.values() if len(names) > 1)[:2]
    names = {first: second, second: first}
    for at, slot in enumerate(rows):
        if slot.seq in states and slot.slot in names:
            other = slot._replace(slot=names[slot.slot], name=names[slot.slot])
            rows[at] = other._replace(**dict.fromkeys(("mix64", "value64", "bag64"), 5)) if spoil and slot.slot == first else other


def slugs(verdict):
    return [entry.slug for entry in verdict.reasons]


@pytest.mark.parametrize("turned", [False, True])
def test_the_same_state_under_each_others_names(turned):
    other = written()
    exchange(other)
    sides = (run(written()), run(other))
    verdict = compare(*(reversed(sides) if turned else sides))
    assert (verdict.verdict, verdict.pivot) == ("inconclusive", None)
    assert "state-exchanged" in slugs(verdict)


def test_another_value_is_no_exchange():
    other = written()
    exchange(other, spoil=True)
    verdict = compare(run(written()), run(other))
    assert verdict.verdict == "diverged"
    assert "state-exchanged" not in slugs(verdict)


def with_optimizers(writer, count):
    """Make the first marker stand for the construction of so many optimizers."""
    rows = writer.rows["events"]
    (first,) = [at for at, event in enumerate(rows) if event.kind == Kind.MARKER][:1]
    marks = [at for at, event in enumerate(rows) if event.kind == Kind.MARKER and event.window == 0][1 : 1 + count]
    assert len(marks) == count and first not in marks
    for at in marks:
        rows[at] = rows[at]._replace(operator=str(Marker.OPTIMIZER_INIT))
    return writer


@pytest.mark.parametrize(("suspect", "word"), [(1, "diverged"), (2, "inconclusive")])
def test_an_update_without_counterpart(suspect, word):
    program = gpt(SHAPE)
    updates = [at for at in program.find(1) if program[at].phase == "optimizer" and program[at].kind == "operator"]
    lacking = Side(program, [Delete(updates[-1])])
    verdict = compare(run(with_optimizers(written(), 1)), run(with_optimizers(written(lacking), suspect)))
    assert verdict.verdict == word, slugs(verdict)
    assert ("optimizers-differ" in slugs(verdict)) == (word == "inconclusive")
