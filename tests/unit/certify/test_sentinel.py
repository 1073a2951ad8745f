"""Two sentinel traces: the first step whose state differs, what counts, and what is missing; never a place."""

import pytest

from opguard_core.certify.answer import to_dict
from opguard_core.certify.compare import compare
from opguard_core.trace.reader import Run
from opguard_core.trace.schema import EventRow, SlotRow
from opguard_core.trace.writer import TraceWriter

SIZES = {"param": (6, 100), "grad": (6, 100), "optim": (18, 206), "buffer": (2, 10)}


def word(kind, step, spoiled=0):
    return hash((kind, step, spoiled)) & ((1 << 64) - 1)


def state(seq, step, spoil):
    """Rows of one step's state; ``spoil`` maps (kind, step) to another value, "order", "cast", "lost" or a size."""
    rows = []
    for kind, size in SIZES.items():
        change = spoil.get((kind, step), spoil.get((kind, "all")))
        tensors, elements = change if isinstance(change, tuple) else size
        mix = value = word(kind, step, change if isinstance(change, int) else 0)
        bag = word(kind, step, change if isinstance(change, int) else 0) ^ 1
        if change == "order":
            mix, value = mix ^ 2, value ^ 2
        if change == "cast":
            mix ^= 2
        place = ("float32", f"{tensors},{elements}", "", "", None, 0, 4 * elements, None, 4 * elements)
        if change == "lost":
            mix = value = bag = 0
        rows.append(SlotRow(seq, kind, "in", "unreadable" if change == "lost" else "probed", *place, mix, value, bag, 0, False, ""))
    random = word("rng", step, spoil.get(("rng", step), 0))
    rows.append(SlotRow(seq, "rng:cpu", "in", "probed", "uint64", "", "", "cpu", None, 0, 8, None, 8, random, random, random, 0, True, ""))
    return rows


def event(seq, kind, operator, step, args):
    counts = (None, None, "main", 0, 0, step, 0, "state", "", "", None, None, None, None)
    return EventRow(seq, kind, operator, seq, *counts, args, "", None, False)


@pytest.fixture
def sentinel(tmp_path):
    """Write one trace: ``steps`` updates, spoiled as told; ``missing`` steps have no state; ``cut`` leaves it torn."""

    def write(name, *, steps=6, spoil=None, missing=(), cut=False, mode="sentinel", first=0):
        writer = TraceWriter(tmp_path / name / "rank-00000", mode=mode)
        seq = 0
        for step in range(first, first + steps):
            writer.emit(event(seq, "marker", "opguard.optimizer.end", step, ""), [])
            if step not in missing:
                seq += 1
                writer.emit(event(seq, "state", "opguard.state", step, "why=update"), state(seq, step, spoil or {}))
            seq += 1
        writer.emit(event(seq, "marker", "opguard.run.end", first + steps, "reason=exit"), [])
        writer.close(ended="exit", engines={}, coverage={}, contract={}, extra={"plan_hash": mode})
        if cut:
            segment = sorted((tmp_path / name / "rank-00000").glob("slots-*.arrow"))[-1]
            segment.unlink()
        return Run.open(tmp_path / name)

    return write


def judged(reference, suspect):
    return to_dict(compare(reference, suspect))


def slugs(answer):
    return [reason["slug"] for reason in answer["reasons"]]


def test_equal_states_are_identical_and_the_answer_says_that_only_state_was_compared(sentinel):
    answer = judged(sentinel("a"), sentinel("b"))
    assert answer["verdict"] == "identical", answer["reasons"]
    assert answer["mode"] == "sentinel"
    assert answer["compared"]["boundaries"] == "the state at the end of each step only"
    assert answer["compared"]["state_kinds"] == ["param", "optim", "buffer"]
    assert answer["compared"]["parameter_updates"] == 36
    assert answer["prefix"]["pairs"] == 6
    assert "located" not in answer


@pytest.mark.parametrize("kind", ["param", "optim", "buffer"])
def test_the_first_step_whose_state_differs_is_located_and_no_place_is_named(sentinel, kind):
    answer = judged(sentinel("a"), sentinel("b", spoil={(kind, 3): 7, ("param", 4): 7}))
    assert answer["verdict"] == "inconclusive"
    assert answer["pivot"] is None
    assert not answer["rank_firsts"]
    assert answer["located"] == {"step": 3, "rank": 0, "kinds": [kind], "why": "state-differs", "also_differ": {}}
    assert slugs(answer)[0] == "state-differs"
    assert "--steps 2:4" in answer["reasons"][0]["fix"]
    assert answer["prefix"]["pairs"] == 3


@pytest.mark.parametrize("kind", ["grad", "rng"])
def test_a_gradient_or_a_random_state_alone_is_told_and_decides_nothing(sentinel, kind):
    alone = judged(sentinel("a"), sentinel("b", spoil={(kind, 2): 7}))
    assert alone["verdict"] == "identical"
    both = judged(sentinel("c"), sentinel("d", spoil={(kind, 2): 7, ("param", 4): 7}))
    assert both["located"]["step"] == 4
    assert both["located"]["also_differ"] == {"rng:cpu" if kind == "rng" else kind: 2}


def test_a_cast_of_the_whole_state_is_no_difference(sentinel):
    assert judged(sentinel("a"), sentinel("b", spoil={("param", "all"): "cast"}))["verdict"] == "identical"


def test_another_order_from_the_first_step_on_is_compared_without_order_and_not_called_identical(sentinel):
    answer = judged(sentinel("a"), sentinel("b", spoil={("param", "all"): "order"}))
    assert answer["verdict"] == "inconclusive"
    assert (slugs(answer)[0], answer["located"]["why"], answer["located"]["step"]) == ("state-reordered", "state-reordered", 0)


def test_another_order_at_one_step_is_a_difference(sentinel):
    answer = judged(sentinel("a"), sentinel("b", spoil={("param", 2): "order"}))
    assert (answer["located"]["step"], answer["located"]["why"]) == (2, "state-differs")


def test_parameters_of_other_sizes_cannot_be_compared_by_their_sum(sentinel):
    answer = judged(sentinel("a"), sentinel("b", spoil={("param", "all"): (8, 100)}))
    assert answer["verdict"] == "inconclusive"
    assert "state-unmatched" in slugs(answer)
    assert "8 tensors of 100 elements" in answer["reasons"][0]["text"]
    assert "located" not in answer


def test_other_state_of_other_sizes_is_named_as_not_compared(sentinel):
    answer = judged(sentinel("a"), sentinel("b", spoil={("buffer", "all"): (3, 11)}))
    assert answer["verdict"] == "identical"
    assert answer["compared"]["state_not_compared"] == ["buffer"]
    assert answer["compared"]["state_kinds"] == ["param", "optim"]


def test_unequal_lengths_are_never_identical(sentinel):
    answer = judged(sentinel("a"), sentinel("b", steps=4))
    assert (answer["verdict"], slugs(answer)) == ("inconclusive", ["unequal-length"])


def test_a_step_without_its_state_is_never_identical(sentinel):
    answer = judged(sentinel("a"), sentinel("b", missing=(2,)))
    assert (answer["verdict"], slugs(answer)) == ("inconclusive", ["state-missing"])


def test_steps_that_do_not_overlap_are_never_identical(sentinel):
    answer = judged(sentinel("a"), sentinel("b", first=40))
    assert answer["verdict"] == "inconclusive"
    assert "steps-not-overlapping" in slugs(answer)


def test_a_torn_trace_is_never_identical(sentinel):
    answer = judged(sentinel("a"), sentinel("b", cut=True))
    assert answer["verdict"] == "inconclusive"
    assert "torn-trace" in slugs(answer)


def test_swapping_the_sides_locates_the_same_step(sentinel):
    a, b = sentinel("a"), sentinel("b", spoil={("optim", 3): 7})
    assert judged(a, b)["located"] == judged(b, a)["located"]


def test_a_sum_with_a_lost_part_says_nothing_and_no_verdict_follows_from_it(sentinel):
    whole = sentinel("whole")
    for name, sides in (("lost", ("whole", "lost")), ("other", ("lost", "whole"))):
        lost = sentinel(name, spoil={("optim", 3): "lost"})
        pair = [whole if side == "whole" else lost for side in sides]
        answer = judged(*pair)
        assert (answer["verdict"], slugs(answer)) == ("inconclusive", ["state-unread"])
        assert "located" not in answer
        assert "optim" in answer["reasons"][0]["text"] and "step 3" in answer["reasons"][0]["text"]
    both = judged(sentinel("both-a", spoil={("param", 5): "lost"}), sentinel("both-b", spoil={("param", 5): "lost"}))
    assert (both["verdict"], slugs(both)) == ("inconclusive", ["state-unread"]), "the last step, too"


def test_a_gradient_that_was_lost_forbids_nothing(sentinel):
    answer = judged(sentinel("a", spoil={("grad", 3): "lost"}), sentinel("b"))
    assert (answer["verdict"], slugs(answer)) == ("identical", [])


def test_a_difference_after_a_lost_sum_may_have_begun_where_it_was_lost(sentinel):
    reference = sentinel("a", spoil={("param", 2): "lost", ("param", 3): "lost"})
    located = judged(reference, sentinel("b", spoil={("param", 4): 1}))["located"]
    assert (located["step"], located["since"], located["kinds"]) == (4, 2, ["param"])
    located = judged(reference, sentinel("c", spoil={("param", 5): 1}))["located"]
    assert located["step"] == 5 and "since" not in located, "it was equal in between"
