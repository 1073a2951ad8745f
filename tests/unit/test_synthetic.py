"""Claims about the synthetic traces: equal programs give equal digests, a planted difference shows first where it was
planted and only downstream of it, and harmless edits change no value."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from tests.support.synthetic import (
    Arguments,
    Become,
    Corrupt,
    Delete,
    GptShape,
    Insert,
    Overwrite,
    Reseed,
    Side,
    Site,
    Swap,
    depends,
    emit_side,
    gpt,
    harmless_edits,
    swappable,
)

SHAPES = [
    GptShape(layers=1, steps=2),
    GptShape(layers=2, steps=2, microbatches=2, optimizer="fused", loader_thread=True),
    GptShape(layers=1, steps=2, world_size=2, dropout=False),
]


class Collect:
    def __init__(self):
        self.rows, self.frames, self.lifetimes, self.stacks = [], [], [], []

    def emit(self, event, slots):
        self.rows.append((event, slots))

    def frame(self, row):
        self.frames.append(row)

    def stack(self, stack, frames):
        self.stacks.append(frames)

    def lifetime(self, row):
        self.lifetimes.append(row)

    def source(self, digest, text): ...


def execute(side, **options):
    sink = Collect()
    emit_side(side, sink, **options)
    return sink


def contents(slots):
    return [(slot.slot, slot.mix64) for slot in slots]


def written(slots):
    return [(slot.slot, slot.mix64) for slot in slots if slot.direction != "in"]


def differing(program, side):
    """Pairs (index, seq on the edited side) whose written values differ, and those whose read values differ."""
    reference, suspect = execute(program).rows, execute(side).rows
    writes, reads = [], []
    for seq, index in enumerate(side.original_of()):
        if index >= 0:
            mine, theirs = suspect[seq][1], reference[index][1]
            if written(mine) != written(theirs):
                writes.append(int(index))
            elif contents(mine) != contents(theirs):
                reads.append(int(index))
    return writes, reads


@pytest.mark.parametrize("shape", SHAPES)
def test_rows_are_what_the_schema_asks_for(shape):
    sink = execute(gpt(shape), mode="verify")
    assert [event.seq for event, _ in sink.rows] == list(range(len(gpt(shape))))
    assert [row.frame for row in sink.frames] == list(range(len(sink.frames)))
    windows = [event.window for event, _ in sink.rows]
    assert windows == sorted(windows)
    assert windows[-1] == shape.steps
    for event, slots in sink.rows:
        assert all(slot.seq == event.seq for slot in slots)
        assert event.forward_seq is None or (event.phase == "backward" and event.forward_seq < event.seq)
        order = ["in", "mut", "out"]
        assert [order.index(slot.direction) for slot in slots] == sorted(order.index(slot.direction) for slot in slots)
    born = Counter(row.storage for row in sink.lifetimes)
    assert set(born.values()) == {1}
    assert set(born) == {slot.storage for _, slots in sink.rows for slot in slots}


@pytest.mark.parametrize("shape", SHAPES)
def test_equal_programs_give_equal_rows(shape):
    assert execute(gpt(shape)).rows == execute(Side(gpt(shape))).rows


def test_ranks_differ_in_data_and_agree_in_structure():
    program = gpt(SHAPES[2])
    first, second = execute(program, rank=0).rows, execute(program, rank=1).rows
    assert [event.operator for event, _ in first] == [event.operator for event, _ in second]
    assert first != second


@pytest.mark.parametrize("shape", SHAPES)
def test_a_corrupted_output_shows_first_where_it_was_planted(shape):
    program = gpt(shape)
    spread = 0
    for at in program.find(1, role="compute")[::7]:
        writes, reads = differing(program, Side(program, [Corrupt(at)]))
        assert writes[0] == at
        assert all(index > at for index in reads)
        spread += len(writes) > 1
    assert spread > 1


def test_each_planted_cause_shows_where_it_says():
    program = gpt(SHAPES[0])
    gelu = program.find(1, operator="aten.gelu.default")[0]
    dropout = program.find(1, operator="aten.native_dropout.default")[0]
    optimizer = program.find(0, operator="aten.addcdiv_.Tensor") or program.find(0, operator="aten.addcdiv_.default")
    here = program[gelu]
    for edit, first in (
        (Corrupt(optimizer[0]), optimizer[0]),
        (Arguments(gelu, "(approximate=tanh)"), gelu),
        (Overwrite(gelu, "blocks.0.u"), gelu),
        (Reseed(gelu), program.find(2 - 1, rng="cpu")[-1] if dropout > gelu else program.start_of(2)),
        (Become(gelu, replace(here, operator="aten.silu.default")), gelu),
        (Delete(gelu), gelu + 1),
    ):
        writes, _ = differing(program, Side(program, [edit]))
        if isinstance(edit, Reseed) and dropout < gelu:
            assert not writes  # nothing consumes the stream any more
        else:
            assert writes[0] == first, edit


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_harmless_edits_change_no_value(seed):
    program = gpt(replace(SHAPES[seed], steps=3))
    edits = harmless_edits(program, seed, inserts=0.05, deletes=0.03, swaps=0.08)
    kinds = Counter(type(edit) for edit in edits)
    assert set(kinds) == {Insert, Delete, Swap}
    side = Side(program, edits)
    writes, reads = differing(program, side)
    assert not writes
    assert not reads
    original = side.original_of()
    assert len(original) == len(execute(side).rows)
    assert sorted(original[original >= 0]) == sorted(set(range(len(program))) - {edit.at for edit in edits if isinstance(edit, Delete)})
    assert np.count_nonzero(original < 0) == kinds[Insert]


def test_a_planted_difference_under_harmless_edits():
    program = gpt(GptShape(layers=2, steps=3))
    at = program.find(1, operator="aten.gelu.default")[1]
    side = Side(program, [edit for edit in harmless_edits(program, 5) if edit.at not in (at, at - 1)] + [Corrupt(at)])
    writes, _ = differing(program, side)
    assert writes[0] == at
    assert side.original_of()[side.seq_of(at)] == at


def test_moved_sites_change_places_only():
    program = gpt(SHAPES[0])
    old = Site("model.py", "Mlp.forward", 38, "F.gelu(self.up(x))")
    side = Side(program, renamed={old: old._replace(function="FeedForward.forward", line=77)})
    mine, theirs = execute(side), execute(program)
    assert [slots for _, slots in mine.rows] == [slots for _, slots in theirs.rows]
    assert [row.function for row in mine.frames] != [row.function for row in theirs.frames]


def test_dependent_neighbours_are_not_swapped():
    program = gpt(SHAPES[0])
    gelu = program.find(0, operator="aten.gelu.default")[0]
    assert depends(program[gelu], program[gelu + 1])
    assert gelu not in swappable(program)
    with pytest.raises(ValueError, match="two edits"):
        list(Side(program, [Corrupt(gelu), Delete(gelu)]).turns())
    with pytest.raises(IndexError):
        program[len(program)]
    assert Side(program, [Delete(gelu)]).seq_of(gelu) is None
