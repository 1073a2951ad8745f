"""Each origin of DESIGN section 9, planted in a tiny training, found at its expression, and mirrored when sides swap."""

from __future__ import annotations

from dataclasses import replace

from tests.support.script import Held, Script, Tensor

T = dict[str, Tensor]


def other(tensor: Tensor) -> Tensor:
    """The same tensor with other bytes that nobody wrote."""
    return tensor.holding(Held(tensor.held.word + 1))


def in_step(step: int, wanted: str, change):
    """A twist at one place of one step."""

    def twist(s: Script, place: str, t: T) -> None:
        if place == wanted and s.window == step:
            change(s, t)

    return twist


def clone(content=None, **facts):
    """A further operator on h, with a result of its own choosing."""

    def change(s: Script, t: T) -> None:
        held = t["h"].held if content is None else content
        t["h"] = s.op("aten.clone.default", [t["h"]], (4, 8), held, **{"at": "h.clone()", "line": 30, **facts})

    return in_step(1, "after mm", change)


def test_equal_trainings_are_identical(judge):
    verdict = judge()
    assert verdict.verdict == "identical"
    assert verdict.pivot is None and verdict.reasons == [] and verdict.isolated == []
    assert verdict.compared["parameter_updates"] == 2
    assert verdict.compared["reads"] == 2
    assert verdict.compared["paired_share"] == {"reference": 1.0, "suspect": 1.0}
    assert verdict.prefix["pairs"] == 1 + 2 * 8
    assert verdict.prefix["tensors"] > verdict.prefix["pairs"]


def test_operator(both):
    verdict = both(clone(), clone(Held(77)))
    assert verdict.verdict == "diverged"
    assert (verdict.pivot.origin, verdict.pivot.origin_alternatives) == ("operator", [])
    assert verdict.pivot.suspect.text == "h.clone()"
    assert (verdict.pivot.step, verdict.pivot.phase, verdict.pivot.slot) == (1, "forward", "out.0")
    assert verdict.pivot.near[0]["suspect"]["text"] == "F.gelu(h)"
    assert verdict.prefix["pairs"] < 17


def test_an_operator_that_gets_a_tensor_more_is_structure_and_no_other_result_for_equal_inputs(both):
    def packed(*more: str):
        def change(s: Script, t: T) -> None:
            t["h"] = s.op("aten.cat.default", [t["h"], *(t[name] for name in more)], (4, 8), at="torch.cat(parts)", line=30)

        return in_step(1, "after mm", change)

    verdict = both(packed(), packed("w"))
    assert verdict.verdict == "diverged"
    assert (verdict.pivot.origin, verdict.pivot.suspect.text) == ("structure", "torch.cat(parts)")


def test_operator_with_inputs_that_were_not_read_again_may_be_mutated(both):
    def unprobed(content=None):
        def change(s: Script, t: T) -> None:
            carried = Tensor(t["h"].storage, (4, 8), t["h"].held, status="carried")
            t["h"] = s.op("aten.clone.default", [carried], (4, 8), content or t["h"].held, at="h.clone()")

        return in_step(1, "after mm", change)

    verdict = both(unprobed(), unprobed(Held(77)))
    assert (verdict.pivot.origin, verdict.pivot.origin_alternatives) == ("operator", ["mutated"])


def test_operator_with_an_unreadable_input_may_have_an_unobserved_producer(both):
    def unreadable(content=None):
        def change(s: Script, t: T) -> None:
            hidden = Tensor(s._storage(), (4, 8), Held(1), status="unreadable")
            t["h"] = s.op("aten.add.Tensor", [t["h"], hidden], (4, 8), content or t["h"].held, at="h + hidden")

        return in_step(1, "after mm", change)

    verdict = both(unreadable(), unreadable(Held(77)))
    assert verdict.pivot.origin == "operator"
    assert verdict.pivot.origin_alternatives == ["unobserved-producer", "mutated"]


def test_argument(both):
    verdict = both(clone(args="memory_format=None"), clone(Held(78), args="memory_format=2"))
    assert verdict.pivot.origin == "argument"


def test_an_argument_that_changes_nothing_is_no_difference(both):
    assert both(clone(args="memory_format=None"), clone(args="memory_format=2")).verdict == "identical"


def test_dtype(both):
    def cast(word, value, dtype):
        def change(s: Script, t: T) -> None:
            low = s.op("aten._to_copy.default", [t["h"]], (4, 8), Held(word, value), dtype=dtype, at="h.to(dtype)", line=30)
            t["h"] = s.op("aten._softmax.default", [low], (4, 8), Held(word + 1), dtype=dtype, at="low.softmax(-1)", line=31)

        return in_step(0, "after mm", change)

    # GIVEN a softmax over the same values in another precision
    verdict = both(cast(40, 5, "float32"), cast(50, 5, "bfloat16"))
    assert (verdict.pivot.origin, verdict.pivot.suspect.text) == ("dtype", "low.softmax(-1)")


def test_a_cast_that_loses_nothing_is_no_difference(both):
    def cast(word, dtype):
        def change(s: Script, t: T) -> None:
            low = s.op("aten._to_copy.default", [t["h"]], (4, 8), Held(word, 5), dtype=dtype, at="h.to(dtype)")
            t["h"] = s.op("aten._to_copy.default", [low], (4, 8), Held(60), at="low.float()")

        return in_step(0, "after mm", change)

    assert both(cast(40, "float32"), cast(50, "bfloat16")).verdict == "identical"


def test_permutation(both):
    verdict = both(clone(Held(70, 70, 7)), clone(Held(71, 71, 7)))
    assert verdict.pivot.origin == "permutation"


def test_another_layout_carried_along_is_no_difference(both):
    def layout(word, shape):
        def change(s: Script, t: T) -> None:
            turned = s.op("aten.clone.default", [t["h"]], shape, Held(word, None, 7), at="h.transpose(0, 1).clone()", line=30)
            flat = s.op("aten.gelu.default", [turned], (32,), Held(word + 1, None, 8), at="F.gelu(turned)", line=31)
            t["h"] = s.op("aten.clone.default", [flat], (4, 8), Held(99), at="back(flat)", line=32)

        return in_step(0, "after mm", change)

    assert both(layout(40, (4, 8)), layout(50, (8, 4))).verdict == "identical"


def test_random_state(both):
    def reseeded(s: Script, place: str, t: T) -> None:
        if place == "after gelu" and s.window == 1:
            t["a"] = s.op("aten.bernoulli.default", [t["a"]], (4, 8), at="noise(a)", rng=("cpu", 999), line=33)

    def plain(s: Script, place: str, t: T) -> None:
        if place == "after gelu" and s.window == 1:
            t["a"] = s.op("aten.bernoulli.default", [t["a"]], (4, 8), at="noise(a)", rng=("cpu", 998), line=33)

    verdict = both(plain, reseeded)
    assert (verdict.pivot.origin, verdict.pivot.suspect.text) == ("random-state", "noise(a)")


def test_mutated(both):
    """The bytes read are not the bytes the only writer left: a race, a write through `.data`, a missing wait."""

    def silently(s: Script, t: T) -> None:
        t["h"] = other(t["h"])

    verdict = both(None, in_step(1, "after mm", silently))
    assert (verdict.pivot.origin, verdict.pivot.suspect.text) == ("mutated", "F.gelu(h)")
    assert [entry["what"] for entry in verdict.pivot.near][:2] == ["producer", "producer"]


def test_bytes_that_change_unseen_on_both_sides_have_an_unobserved_producer(both):
    def silently(by):
        return in_step(1, "after mm", lambda s, t: t.update(h=t["h"].holding(Held(1000 + by))))

    verdict = both(silently(1), silently(2))
    assert (verdict.pivot.origin, verdict.pivot.origin_alternatives) == ("unobserved-producer", ["mutated"])


def test_input_data(both):
    verdict = both(None, in_step(1, "batch", lambda s, t: t.update(x=other(t["x"]))))
    assert (verdict.pivot.origin, verdict.pivot.suspect.text, verdict.pivot.slot) == ("input-data", "x @ self.w", "in.0")


def test_initial_state(both):
    def loaded(s: Script, t: T) -> None:
        t["w"] = other(t["w"])

    verdict = both(None, in_step(0, "batch", loaded))
    assert (verdict.pivot.origin, verdict.pivot.step) == ("initial-state", 0)


def test_unobserved_producer_when_only_one_side_saw_who_made_it(both):
    def scalar(observed):
        def change(s: Script, t: T) -> None:
            n = s.op("aten.add_.Tensor", [s.given((), 7)], (), 8, at="count.add_(1)") if observed else s.given((), 9)
            t["h"] = s.op("aten.mul.Tensor", [t["h"], n], (4, 8), at="h * n", line=30)

        return in_step(1, "after mm", change)

    verdict = both(scalar(True), scalar(False))
    assert (verdict.pivot.origin, verdict.pivot.suspect.text) == ("unobserved-producer", "h * n")


def test_structure_extra_operator(both):
    def scaled(s: Script, t: T) -> None:
        t["g"] = s.op("aten.mul_.Tensor", [t["g"]], (8, 8), into=t["g"], at="g.mul_(0.5)", line=40, phase="backward")

    verdict = both(None, in_step(1, "after backward", scaled))
    assert verdict.pivot.origin == "structure"
    assert verdict.pivot.reference is None
    assert verdict.pivot.suspect.text == "g.mul_(0.5)"
    assert verdict.pivot.near[0]["what"] == "first-consumer"
    assert verdict.pivot.near[0]["reference"]["text"] == verdict.pivot.near[0]["suspect"]["text"] == "opt.step()"


def test_structure_extra_operator_that_changes_the_shared_value(both):
    """Its own inputs may be extra work as well; the operator that takes hold of the shared value is named."""

    def chain(s: Script, t: T) -> None:
        norm = s.op("aten.linalg_vector_norm.default", [t["g"]], (), at="norm(g)", line=41, phase="backward")
        t["g"] = s.op("aten.mul_.Tensor", [t["g"], norm], (8, 8), into=t["g"], at="g.mul_(norm)", line=42, phase="backward")

    verdict = both(None, in_step(1, "after backward", chain))
    assert verdict.pivot.suspect.text == "g.mul_(norm)"


def test_structure_first_of_several_changes_of_the_shared_value(both):
    def chain(s: Script, t: T) -> None:
        for at, name in enumerate(["g.mul_(0.5)", "reduce(g)"]):
            t["g"] = s.op("aten.mul_.Tensor", [t["g"]], (8, 8), into=t["g"], at=name, line=42 + at, phase="backward", args=name)

    verdict = both(None, in_step(1, "after backward", chain))
    assert (verdict.pivot.suspect.text, verdict.pivot.reference) == ("g.mul_(0.5)", None)


def test_structure_a_part_that_one_side_overwrites(both):
    def zeroed(s: Script, t: T) -> None:
        s.op("aten.zero_.default", [], (8,), into=t["g"].view((8,), 0, 0, 32), at="g[0].zero_()", line=42, phase="backward")
        t["g"] = t["g"].holding(Held(4242))

    verdict = both(None, in_step(1, "after backward", zeroed))
    assert (verdict.pivot.suspect.text, verdict.pivot.reference) == ("g[0].zero_()", None)


def test_structure_a_value_made_anew_against_a_stale_one(both):
    """One side builds its mask again, the other reads an old one: the reader shows it, the builder is attached."""

    def fresh(s: Script, t: T) -> None:
        rows = s.op("aten.arange.default", [], (3, 3), 61, at="arange()", line=40)
        mask = s.op("aten.ge.Tensor", [rows], (8, 8), at="rows >= columns", line=41)
        t["h"] = s.op("aten.mm.default", [t["h"], mask], (4, 8), at="h @ mask", line=43)

    def stale(s: Script, t: T) -> None:
        t["h"] = s.op("aten.mm.default", [t["h"], t["mask"]], (4, 8), at="h @ mask", line=43)

    verdict = both(in_step(1, "after mm", fresh), in_step(1, "after mm", stale))
    assert verdict.pivot.origin == "structure"
    assert verdict.pivot.reference.text == verdict.pivot.suspect.text == "h @ mask"
    assert verdict.pivot.near[0]["reference"]["text"] == "rows >= columns"


def test_structure_another_operator_in_the_same_place(both):
    def using(operator, at):
        return in_step(1, "after mm", lambda s, t: t.update(h=s.op(operator, [t["h"]], (4, 8), at=at, line=30)))

    verdict = both(using("aten.relu.default", "F.relu(h)"), using("aten.silu.default", "F.silu(h)"))
    assert verdict.pivot.origin == "structure"
    assert (verdict.pivot.reference.text, verdict.pivot.suspect.text) == ("F.relu(h)", "F.silu(h)")


def test_structure_stale_value(both):
    """The suspect reads what a buffer held before; both values are known to both sides."""

    def twist(fresh):
        def change(s: Script, t: T) -> None:
            buffer = s.op("aten.clone.default", [t["x"]], (4, 8), at="keep(x)", line=30)
            newer = s.op("aten.sin.default", [t["x"]], (4, 8), at="newer(x)", line=31)
            t["h"] = s.op("aten.add.Tensor", [t["h"], newer if fresh else buffer], (4, 8), at="h + used", line=32)

        return in_step(1, "after mm", change)

    verdict = both(twist(True), twist(False))
    assert (verdict.pivot.origin, verdict.pivot.suspect.text) == ("structure", "h + used")
    assert {entry["operator"] for entry in verdict.pivot.near if entry["what"] == "producer"} == {"aten.sin.default", "aten.clone.default"}


def test_the_same_work_in_another_order(both):
    """Norm before or after the gradients are scaled: the value read first is what differs."""

    def twist(norm_first):
        def change(s: Script, t: T) -> None:
            for what in ("norm", "scale") if norm_first else ("scale", "norm"):
                if what == "norm":
                    t["n"] = s.op("aten.linalg_vector_norm.default", [t["g"]], (), at="norm(g)", line=41, phase="backward")
                else:
                    t["g"] = s.op("aten.mul_.Tensor", [t["g"]], (8, 8), into=t["g"], at="g.mul_(0.5)", line=42, phase="backward")
            t["g"] = s.op("aten.div_.Tensor", [t["g"], t["n"]], (8, 8), into=t["g"], at="g.div_(n)", line=43, phase="backward")

        return in_step(1, "after backward", change)

    verdict = both(twist(False), twist(True))
    assert (verdict.pivot.origin, verdict.pivot.suspect.text) == ("structure", "norm(g)")


def test_a_race_of_updates_is_found_at_the_update(both):
    def twist(order):
        def change(s: Script, t: T) -> None:
            parts = {name: s.op("aten.sin.default", [t["x"]], (8, 8), Held(600 + i), at=f"part_{name}(x)") for i, name in enumerate("ab")}
            total = s.op("aten.zeros.default", [], (8, 8), 0, at="zeros()", trivial=True)
            for name in order:
                total = s.op("aten.add_.Tensor", [total, parts[name]], (8, 8), into=total, at="total.add_(part)", line=44)
            t["h"] = s.op("aten.mm.default", [t["h"], total], (4, 8), at="h @ total", line=45)

        return in_step(1, "after mm", change)

    verdict = both(twist("ab"), twist("ba"))
    assert (verdict.pivot.origin, verdict.pivot.suspect.text) == ("structure", "total.add_(part)")


def test_swapped_operands_of_a_sum_are_no_difference(both):
    def twist(swapped):
        def change(s: Script, t: T) -> None:
            pair = [t["h"], t["x"]][:: -1 if swapped else 1]
            t["h"] = s.op("aten.add.Tensor", pair, (4, 8), 321, at="h + x", line=30)

        return in_step(1, "after mm", change)

    assert both(twist(False), twist(True)).verdict == "identical"


def test_backward_places_carry_the_forward_place(both):
    def change(s: Script, t: T) -> None:
        t["g"] = s.op("aten.mm.default", [t["a"], t["x"]], (8, 8), Held(5), at="loss.backward()", phase="backward", forward=s.seq - 6)

    def same(s: Script, t: T) -> None:
        t["g"] = s.op("aten.mm.default", [t["a"], t["x"]], (8, 8), Held(6), at="loss.backward()", phase="backward", forward=s.seq - 6)

    verdict = both(in_step(1, "after backward", same), in_step(1, "after backward", change))
    assert verdict.pivot.phase == "backward"
    assert verdict.pivot.forward is not None
    assert verdict.pivot.forward.suspect.text == "x @ self.w"


def test_what_replaces_a_weight_is_state_although_it_has_no_name_yet(both):
    """Read from a file past every operator, and found among the parameters only at the end of the step."""

    def loaded(content):
        def change(s: Script, t: T) -> None:
            weight = s.given((8, 8), content)
            t["h"] = s.op("aten.mm.default", [t["x"], weight], (4, 8), at="x @ self.w", line=3)
            t["w"] = replace(weight, name="param:w")

        return in_step(1, "after mm", change)

    verdict = both(loaded(61), loaded(62))
    assert verdict.verdict == "diverged"
    assert (verdict.pivot.origin, verdict.pivot.suspect.text) == ("initial-state", "x @ self.w")
