"""Pairing of named calls: one to one, the same from both sides, true to the order and to what the calls got."""

from hypothesis import given
from hypothesis import strategies as st

from opguard_core.certify.semantic.pairing import pair
from opguard_core.certify.semantic.records import Call, Record
from opguard_core.trace.schema import EventRow, SlotRow

NAMES = ("attention", "mlp", "expert")
contents = st.integers(1, 4)
programs = st.lists(st.tuples(st.sampled_from(NAMES), contents, st.integers(0, 1)), max_size=9)


def calls(program):
    """Each gets one tensor and gives another."""
    made = []
    for at, (name, content, microbatch) in enumerate(program):
        first = record(2 * at, name, microbatch, "in.0", content)
        made.append(Call(first, [first], [record(2 * at + 1, name, microbatch, "out.0", content + 10)]))
    return made


def record(seq, name, microbatch, slot, content):
    where = (None, None, "main", 0, 0, 0, microbatch, "forward", "", "", None, None, None, None)
    event = EventRow(seq, "semantic", name, 0, *where, "", "", None, True)
    row = (slot, "in", "probed", "float32", "4,4", "4,1", "cpu", seq, 0, 64, 0, 64, content, content, content, 0, False, "")
    return Record(event, (SlotRow(seq, *row),))


def numbers(groups, *, swapped=False):
    """What was decided, by position of the calls."""
    told = set()
    for group in groups:
        told |= {("pair", *((b.seq, a.seq) if swapped else (a.seq, b.seq))) for a, b in group.pairs}
        left, right = (group.suspect_only, group.reference_only) if swapped else (group.reference_only, group.suspect_only)
        told |= {("reference", call.seq) for call in left} | {("suspect", call.seq) for call in right}
        a, b = reversed(group.ambiguous) if swapped else group.ambiguous
        told |= {("left", call.seq) for call in a} | {("right", call.seq) for call in b}
    return told


@given(programs, programs)
def test_every_call_is_told_of_once_and_pairs_with_its_own_kind(one, other):
    left, right = calls(one), calls(other)
    groups = pair(left, right)
    for side, own in enumerate((left, right)):
        told = [each[side].seq for group in groups for each in group.pairs]
        told += [call.seq for group in groups for call in (group.reference_only, group.suspect_only)[side]]
        told += [call.seq for group in groups for call in group.ambiguous[side]]
        assert sorted(told) == [call.seq for call in own]
    for group in groups:
        for a, b in group.pairs:
            assert (a.name, a.first.event.microbatch) == (b.name, b.first.event.microbatch) == (group.key.name, group.key.microbatch)
        assert bool(group.ambiguous[0]) == bool(group.ambiguous[1])
        assert not (group.reference_only and group.suspect_only)


@given(programs)
def test_a_program_pairs_with_itself_in_order(program):
    own = calls(program)
    groups = pair(own, calls(program))
    assert sorted(a.seq for group in groups for a, b in group.pairs if a.seq == b.seq) == [call.seq for call in own]
    assert not any(group.reordered for group in groups)


@given(programs, programs)
def test_which_side_is_the_reference_changes_nothing(one, other):
    left, right = calls(one), calls(other)
    assert numbers(pair(left, right)) == numbers(pair(right, left), swapped=True)


@given(st.permutations(range(1, 7)))
def test_calls_that_got_distinct_things_are_found_in_any_order(order):
    left, right = (calls([("expert", content, 0) for content in contents]) for contents in (range(1, 7), order))
    (group,) = pair(left, right)
    got = {call.entry_slots()[0].value64: call for call in right}
    assert all(got[a.entry_slots()[0].value64] is b for a, b in group.pairs)
    assert len(group.pairs) == 6
    assert group.reordered == (list(order) != sorted(order))


@given(st.lists(contents, min_size=1, max_size=6, unique=True), st.data())
def test_calls_that_one_side_leaves_out_are_its_own_and_never_ambiguous(got, data):
    kept = data.draw(st.lists(st.sampled_from(got), unique=True).map(lambda some: [one for one in got if one in some]))
    groups = pair(calls([("expert", one, 0) for one in got]), calls([("expert", one, 0) for one in kept]))
    assert sum(len(group.pairs) for group in groups) == len(kept)
    assert sum(len(group.reference_only) for group in groups) == len(got) - len(kept)
    assert not any(group.ambiguous[0] for group in groups)
