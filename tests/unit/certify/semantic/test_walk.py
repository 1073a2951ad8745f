"""How far two runs are equal at named boundaries, and which is the first that is not."""

import pytest

from opguard_core.certify.answer import to_dict
from opguard_core.certify.compare import compare
from opguard_core.certify.semantic.slots import How
from opguard_core.certify.semantic.walk import ENTRY, ENTRY_GRADIENT, EXIT, EXIT_GRADIENT, VALUE, walk
from opguard_harness.report.semantic_words import facts
from tests.support.named import Named, found
from tests.support.script import Held, Script

LAYERS = ("layers.0", "layers.1", "layers.2")


def chain(changes=None, *, microbatches=2, names=LAYERS, steps=1):
    """A model of layers that each turn one content into another, in several microbatches; ``changes`` by (step, microbatch, layer)."""
    script = Named()
    for step in range(steps):
        for microbatch in range(microbatches):
            held = 100 * step + 10 * microbatch
            for name in names:
                call = script.enter(name, script.given((4, 4), held), microbatch=microbatch)
                held = (changes or {}).get((step, microbatch, name), held * 7 + 1)
                script.leave(call, name, script.given((4, 4), held), microbatch=microbatch)
        script.update()
    return script.close()


def at(moment):
    return moment.name, moment.at, moment.events[0].event.window, moment.events[0].event.microbatch


def test_equal_runs_are_equal_at_every_boundary():
    told = found(chain(steps=2), chain(steps=2))
    assert (told.first, told.prefix, told.calls, told.names) == (None, 24, 12, set(LAYERS))
    assert told.moments == {How.EQUAL: 24}


@pytest.mark.parametrize(("step", "microbatch", "layer", "before"), [(0, 0, 0, 1), (0, 1, 1, 9), (1, 0, 2, 17)])
def test_the_first_exit_that_differs_though_its_entry_is_equal(step, microbatch, layer, before):
    told = found(chain(steps=2), chain({(step, microbatch, LAYERS[layer]): 5}, steps=2))
    assert at(told.first) == (LAYERS[layer], EXIT, step, microbatch)
    assert told.prefix == before
    assert at(told.last) == (LAYERS[layer], ENTRY, step, microbatch)
    assert told.later == []  # what follows got something else already


def test_what_differs_between_two_boundaries_is_told_of_the_later_ones_entry():
    sides = []
    for glue in (7, 8):
        script = Named()
        script.call("norm", 1, 2)
        script.call("mlp", glue, 9)
        sides.append(script.close())
    told = found(*sides)
    assert (at(told.first)[:2], at(told.last)[:2]) == (("mlp", ENTRY), ("norm", EXIT))


def test_of_nested_calls_the_innermost_is_the_first():
    sides = []
    for inner in (3, 4):
        script = Named()
        outer = script.enter("block", script.given((4, 4), 1))
        script.call("attention", 2, inner)
        script.leave(outer, "block", script.given((4, 4), 10 + inner))
        script.call("head", 50, 60 + inner)  # another difference: it gets the same
        sides.append(script.close())
    told = found(*sides)
    assert at(told.first)[:2] == ("attention", EXIT)
    assert [moment.name for moment in told.later] == ["head"]  # not the block that holds the first


def test_what_follows_from_the_first_difference_is_no_further_one():
    """A loss that gets something else has other gradients, although its own is 1 on both sides; after an update all parameters differ."""
    sides = []
    for gives in (2, 3):
        script = Named()
        for step in range(2):
            script.call("block", 1 + 10 * step, gives + 10 * step)
            loss = script.enter("loss", script.given((4, 4), 50 + gives))
            script.leave(loss, "loss", script.given((4, 4), 60 + gives))
            script.gradient(loss, "loss", "out.0", script.given((4, 4), 70))
            script.gradient(loss, "loss", "in.0", script.given((4, 4), 80 + gives))
            script.call("other", 100 + step, 200 + step + (gives if step else 0))
            script.update()
        sides.append(script.close())
    told = found(*sides)
    assert (at(told.first), told.later) == (("block", EXIT, 0, 0), [])


def test_casts_and_layouts_are_the_same_values_and_are_told_apart():
    sides = []
    for cast, layout, permuted in ((Held(1), Held(4), Held(7)), (Held(2, 1), Held(5, 5, 4), Held(8, 8, 7))):
        script = Named()
        suspect = cast.word == 2
        script.value("half", script.given((4, 4), cast, dtype="bfloat16" if suspect else "float32"))
        script.value("heads", script.given((2, 8) if not suspect else (8, 2), layout))
        script.value("order", script.given((4, 4), permuted))
        sides.append(script.close())
    told = found(*sides)
    assert told.moments == {How.CAST: 1, How.LAYOUT: 1, How.PERMUTED: 1}
    assert (at(told.first)[:2], told.prefix) == (("order", VALUE), 2)


def test_gradients_belong_to_the_tensors_of_their_call_whatever_these_are_called():
    sides = []
    for names, changed in (("kw", 30), ("in", 31)):
        script = Named()
        x, other, y = script.given((4, 4), 1), script.given((4, 4), 2), script.given((4, 4), 3)
        call = script.enter("attention", kw={"hidden": x, "mask": other}) if names == "kw" else script.enter("attention", x)
        script.leave(call, "attention", y)
        script.gradient(call, "attention", "out.0", script.given((4, 4), 20))
        script.gradient(call, "attention", "kw.hidden" if names == "kw" else "in.0", script.given((4, 4), changed))
        sides.append(script.close())
    told = found(*sides)
    assert at(told.first)[:2] == ("attention", ENTRY_GRADIENT)
    assert told.prefix == 3  # entry, exit, gradient of the exit
    assert told.first.pairs[0].suspect.slot == "grad_in.0"


def test_one_gradient_of_two_names_is_that_of_the_call_that_ends_there():
    """What `norm` gives is what `attention` gets: the same gradient, which `attention` made."""
    sides = []
    for changed in (30, 31):
        script = Named()
        middle, last = script.given((4, 4), 2), script.given((4, 4), 3)
        norm = script.enter("norm", script.given((4, 4), 1))
        script.leave(norm, "norm", middle)
        attention = script.enter("attention", middle)
        script.leave(attention, "attention", last)
        script.gradient(attention, "attention", "out.0", script.given((4, 4), 20))
        back = script.given((4, 4), changed)
        script.gradient(norm, "norm", "out.0", back)
        script.gradient(attention, "attention", "in.0", back)
        sides.append(script.close())
    told = found(*sides)
    assert at(told.first)[:2] == ("attention", ENTRY_GRADIENT)
    assert at(told.last)[:2] == ("attention", EXIT_GRADIENT)


def test_gradients_of_a_repeated_forward_are_those_of_the_call_it_repeats():
    sides = []
    for checkpointed, changed in ((False, 30), (True, 31)):
        script = Named()
        call = script.call("block", 1, 2)
        if checkpointed:
            script.phase = "recompute"
            call = script.call("block", 1, 2)
        script.gradient(call, "block", "out.0", script.given((4, 4), 20))
        script.gradient(call, "block", "in.0", script.given((4, 4), changed))
        sides.append(script.close())
    told = found(*sides)
    assert (at(told.first)[:2], told.prefix) == (("block", ENTRY_GRADIENT), 3)
    assert told.alone[1] == {"block": 1}  # the repetition, which the other side does not make


def test_a_call_that_ends_in_the_next_step_is_whole():
    sides = []
    for gives in (2, 3):
        script = Named()
        call = script.enter("train_step", script.given((4, 4), 1))
        script.update()
        script.leave(call, "train_step", script.given((4, 4), gives))
        sides.append(script.close())
    assert at(found(*sides).first)[:2] == ("train_step", EXIT)


def test_who_raised_on_one_side_only_differs():
    sides = []
    for raised in ("", "ValueError"):
        script = Named()
        script.leave(script.enter("loss", script.given((4, 4), 1)), "loss", raised=raised)
        sides.append(script.close())
    assert found(*sides).first.at == EXIT


def test_names_of_one_side_are_named_and_end_nothing():
    told = found(chain(names=("a", "b", "c")), chain(names=("a", "c")))
    assert told.alone[0] == {"b": 2}
    assert told.alone[1] == {}
    assert at(told.first)[:2] == ("c", ENTRY)  # without `b` it gets something else


def loops(contents):
    script = Named()
    for content in contents:
        script.call("expert", content, content + 100)
    return script.close()


@pytest.mark.parametrize(
    ("reference", "suspect", "pairs", "alone", "ambiguous", "reordered"),
    [
        ((1, 2, 3), (1, 2, 3), 3, (0, 0), 0, False),
        ((1, 2, 3), (3, 1, 2), 3, (0, 0), 0, True),  # the same calls in another order
        ((1, 2, 3), (1, 3), 2, (1, 0), 0, False),  # one more, and what it got says which
        ((1, 1, 1), (1, 1), 2, (1, 0), 0, False),  # any two of three are as good
        ((1, 2, 3), (1, 9), 1, (0, 0), 2, False),  # 9 is 2 or 3: nobody knows
        ((1, 2, 3), (1, 9, 3), 3, (0, 0), 0, False),  # the place says that 9 is 2
    ],
)
def test_calls_of_loops(reference, suspect, pairs, alone, ambiguous, reordered):
    told = found(loops(reference), loops(suspect))
    assert told.calls == pairs
    assert tuple(counts["expert"] for counts in told.alone) == alone
    assert sum(len(group.ambiguous[0]) for _, group in told.ambiguous) == ambiguous
    assert bool(told.reordered) == reordered


def test_a_difference_behind_ambiguous_calls_is_no_claim():
    sides = []
    for contents, after in (((1, 2, 3), 50), ((1, 9), 51)):
        script = Named()
        for content in contents:
            script.call("expert", content, content + 100)
        script.call("head", 40, after)
        sides.append(script.close())
    answer = to_dict(compare(*sides))["semantic"]
    assert (answer["outcome"], answer["first"]) == ("ambiguous", None)
    assert answer["ambiguous"][0] | {"rank": 0} == {
        "rank": 0, "step": 0, "microbatch": 0, "phase": "forward", "name": "expert", "paired": 1, "reference": 3, "suspect": 2,
    }  # fmt: skip


def test_what_was_not_read_is_neither_equal_nor_different():
    sides = []
    for _ in range(2):
        script = Named()
        script.value("lost", script.given((4, 4), 1, status="unreadable"))
        script.value("seen", script.given((4, 4), 2))
        sides.append(script.close())
    told = found(*sides)
    assert (told.prefix, told.first, told.moments) == (1, None, {How.UNKNOWN: 1, How.EQUAL: 1})


def test_nothing_is_said_of_traces_without_names():
    runs = []
    for _ in range(2):
        script = Script()
        script.op("aten.mm.default", [script.given((4, 4), 1)])
        runs.append(script.close())
    assert walk(runs[0].ranks[0], runs[1].ranks[0], 0, 0) is None
    assert "semantic" not in to_dict(compare(*runs))


def training(named, changed=10):
    script = Named()
    for step in range(2):
        w = script.given((4, 4), 1, name="param:w")
        x = script.given((4, 4), 2)
        call = script.enter("model", x) if named else None
        y = script.op("aten.mm.default", [x, w], (4, 4), changed if step else 10, at="x @ w")
        if named:
            script.leave(call, "model", y)
        script.read(y)
        script.state(param__w=w)
        script.update()
    return script.close()


def without_numbers(value):
    if isinstance(value, dict):
        return {key: without_numbers(item) for key, item in value.items() if key not in ("seq", "semantic")}
    return [without_numbers(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("changed", [10, 11])
def test_the_verdict_of_the_operators_is_what_it_is_without_names(changed):
    bare = to_dict(compare(training(named=False), training(named=False, changed=changed)))
    named = to_dict(compare(training(named=True), training(named=True, changed=changed)))
    one = to_dict(compare(training(named=False), training(named=True, changed=changed)))
    assert without_numbers(named) == without_numbers(bare) == without_numbers(one)
    assert named["semantic"]["outcome"] == ("equal" if changed == 10 else "differs")
    assert one["semantic"]["outcome"] == "nothing-compared"


def test_what_the_answer_says_of_the_first_difference():
    answer = to_dict(compare(training(named=True), training(named=True, changed=11)))["semantic"]
    first = answer["first"]
    assert {key: first[key] for key in ("step", "name", "at", "kind", "entry", "parameters")} == {
        "step": 1, "name": "model", "at": "exit", "kind": "inside", "entry": "equal", "parameters": "equal",
    }  # fmt: skip
    assert first["slots"][0]["reference"] == {"slot": "out.0", "dtype": "float32", "shape": "4,4"}
    assert first["reference"]["text"] == "model()"
    assert answer["around"] == {"reference": ["model"], "suspect": ["model"]}  # of the pivot, which is an operator
    assert answer["prefix"]["last"]["at"] == "entry"


def test_insides_that_do_not_pair_leave_the_verdict_inconclusive_and_the_names_are_the_answer():
    sides = []
    for side in (0, 1):
        script = Named()
        w = script.given((4, 4), 1, name="param:w")
        x = script.given((4, 4), 2)
        for layer in range(12):
            call = script.enter(f"layers.{layer}", x)
            for inner in range(2):  # other operators on each side, with results that the other lacks
                x = script.op(
                    f"aten.op{side}{inner}.default", [x, w], (4, 4), 1000 * (side + 1) + 10 * layer + inner, at=f"f{side}{inner}(x)"
                )
            x = script.op(f"aten.end{side}.default", [x], (4, 4), 500 + layer + (side == 1 and layer == 7), at=f"end{side}(x)")
            script.leave(call, f"layers.{layer}", x)
            x = script.given((4, 4), 600 + layer)
        script.state(param__w=w)
        script.update()
        sides.append(script.close())
    answer = to_dict(compare(*sides))
    assert answer["verdict"] == "inconclusive"
    assert answer["semantic"]["outcome"] == "differs"
    assert (answer["semantic"]["first"]["name"], answer["semantic"]["first"]["kind"]) == ("layers.7", "inside")
    assert answer["semantic"]["prefix"]["records"] == 15


@pytest.mark.parametrize(("steps", "unknown"), [(1, 0), (2, 1)])
def test_what_comes_steps_after_its_call_is_told_to_be_unknown(steps, unknown):
    """A graph that is kept for longer: of its gradient nobody can say by then to which of the calls it belongs."""
    sides = []
    for _ in range(2):
        script = Named()
        call = script.call("embed", 1, 2)
        for _ in range(steps):
            script.update()
            script.call("embed", 3, 4)
        script.gradient(call, "embed", "out.0", script.given((4, 4), 9))
        sides.append(script.close())
    told = found(*sides)
    assert (told.first, told.moments[How.UNKNOWN]) == (None, unknown)
    words = facts(to_dict(compare(*sides))["semantic"])
    assert any("steps after their call" in word for word in words) == bool(unknown)
