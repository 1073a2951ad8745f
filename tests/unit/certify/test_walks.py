"""Corners of the walks: averages of weights, held state, walks cut off, windows only one side has, work done alone on both sides."""

from __future__ import annotations

import pytest

from opguard_core.certify import judge as judging
from opguard_core.certify import matters, root
from opguard_core.certify.compare import compare
from opguard_core.certify.roots import Node, Root, merged
from tests.support.script import Held, Script, Tensor
from tests.unit.certify.test_origins import T, clone, in_step
from tests.unit.certify.test_reasons import slugs


def test_an_average_of_weights_that_nobody_reads_counts_as_state(both):
    """Unnamed, but updated from its own content of an earlier step."""

    def decay(value):
        def twist(s: Script, place: str, t: T) -> None:
            if place == "tail":
                t["ema"] = s.op("aten.mul_.Tensor", [t["ema"]], (8, 8), into=t["ema"], at="ema.mul_(d)", line=14, args=value, phase="data")

        return twist

    verdict = both(decay("0.9"), decay("0.99"), steps=(3, 3))
    assert verdict.verdict == "diverged"
    assert (verdict.pivot.suspect.text, verdict.pivot.origin) == ("ema.mul_(d)", "argument")


def buffer(fill, *, name="", read_back=False):
    """A work buffer that is written anew each step."""

    def twist(s: Script, place: str, t: T) -> None:
        if place == "batch" and s.window == 0:
            twist.buffer = s.op("aten.zeros.default", [], (4, 8), 0, at="zeros(4, 8)", trivial=True, name=name)
        if place == "after mm":
            twist.buffer = s.op("aten.sin.default", [t["x"]], (4, 8), fill + s.window, into=twist.buffer, at="sin(x, out=buffer)", line=32)
            if read_back:
                s.op("aten.gt.Scalar", [twist.buffer], (4, 8), 77, at="buffer > 0", line=33)

    return twist


def test_a_work_buffer_that_is_filled_anew_is_no_state(both):
    verdict = both(buffer(100), buffer(200), steps=(3, 3))
    assert (verdict.verdict, slugs(verdict)) == ("inconclusive", ["unresolved-difference"])


def test_named_state_without_any_boundary_counts_where_it_is_last_written():
    def run(content):
        s = Script()
        w = s.given((8, 8), 1, name="param:w")
        x = s.op("aten.randn.default", [], (8, 8), 5, at="randn()")
        s.op("aten.add_.Tensor", [w, x], (8, 8), content, into=w, at="w.add_(x)")
        return s.close()

    verdict = compare(run(7), run(8))
    assert verdict.verdict == "diverged"
    assert (verdict.pivot.suspect.text, verdict.pivot.origin) == ("w.add_(x)", "operator")


def test_named_state_that_is_overwritten_later_is_no_difference():
    def run(content):
        s = Script()
        w = s.given((8, 8), 1, name="param:w")
        x = s.op("aten.randn.default", [], (8, 8), 5, at="randn()")
        s.op("aten.add_.Tensor", [w, x], (8, 8), content, into=w, at="w.add_(x)")
        s.op("aten.copy_.default", [w.holding(content), x], (8, 8), 9, into=w, at="w.copy_(x)")
        return s.close()

    assert compare(run(7), run(8)).verdict == "identical"


def test_state_written_last_of_all_by_one_side_is_not_identical():
    """Without an optimizer there is no boundary: the missing last update must not pass for equal."""

    def run(update):
        s = Script()
        w = s.given((8, 8), 1, name="param:w")
        x = s.op("aten.randn.default", [], (8, 8), 5, at="randn()")
        if update:
            s.op("aten.add_.Tensor", [w, x], (8, 8), into=w, at="w.add_(x)")
        return s.close()

    for sides in ((run(True), run(False)), (run(False), run(True))):
        verdict = compare(*sides)
        assert (verdict.verdict, slugs(verdict)) == ("inconclusive", ["unresolved-difference"])
        assert "aten.add_.Tensor at model.py:1" in verdict.reasons[0].text


def test_a_gradient_left_scaled_is_not_state(both):
    """One side unscales its gradients in place, the other passes the scale on; the update is the same."""

    def scaled(in_place):
        def change(s: Script, t: T) -> None:
            grad = s.op("aten.clone.default", [t["g"]], (8, 8), 501, at="g.clone()", name="grad:w", phase="backward")
            if in_place:
                s.op("aten.mul_.Tensor", [grad], (8, 8), 502, into=grad, at="grad.mul_(s)", phase="backward")
            s.free(grad)

        return in_step(1, "after backward", change)

    assert both(scaled(True), scaled(False)).verdict == "identical"


def test_a_walk_cut_off_gives_no_pivot(both, monkeypatch):
    monkeypatch.setattr(root, "MAX_NODES", 0)
    verdict = both(clone(), clone(Held(5)))
    assert (verdict.verdict, slugs(verdict)) == ("inconclusive", ["search-exhausted"])


def test_reads_cut_off_are_not_called_harmless(both, monkeypatch):
    def twist(content):
        def change(s: Script, t: T) -> None:
            kept = s.op("aten.sin.default", [t["x"]], (4, 8), content, at="keep(x)", line=30)
            for at in range(3):
                kept = s.op("aten.cos.default", [kept], (4, 8), content + 10 + at, at="cos(kept)", line=31)
            s.op("aten.gt.Scalar", [kept], (4, 8), 77, at="kept > 0", line=32)
            s.free(kept)

        return in_step(1, "after mm", change)

    monkeypatch.setattr(matters.Matters, "_reads_left", -1)
    monkeypatch.setattr(matters, "MAX_READS", -1)
    verdict = both(twist(500), twist(600))
    assert verdict.verdict == "inconclusive"


def test_only_so_many_pieces_of_state_are_walked(both, monkeypatch):
    monkeypatch.setattr(judging, "MAX_STATE_WALKS", 1)

    def missing(s: Script, place: str, t: T) -> None:
        if place == "after update" and s.window == 1:
            t["w"] = s.op("aten.mul_.Tensor", [t["w"]], (8, 8), into=t["w"], at="w.mul_(decay)", line=12, phase="optimizer")

    assert both(missing, None).pivot.reference.text == "w.mul_(decay)"


def test_a_value_made_in_a_window_only_one_side_has():
    """The suspect began earlier; what it made then is work the reference never did."""

    def run(first):
        s = Script()
        s.window = first
        table = None
        if first == 0:
            table = s.op("aten.sin.default", [s.given((4, 8), 1)], (4, 8), 50, at="table()", line=2)
            s.state(param__w=s.given((3, 3), 5))
            s.update()
        else:
            table = s.op("aten.cos.default", [s.given((4, 8), 1)], (4, 8), 60, at="other()", line=2)
        y = s.op("aten.mul.Tensor", [s.given((4, 8), 7), table], (4, 8), at="x * table", line=4)
        s.read(y)
        s.state(param__w=s.given((3, 3), 6))
        s.update()
        return s.close()

    for sides in ((run(1), run(0)), (run(0), run(1))):
        verdict = compare(*sides)
        assert verdict.verdict == "diverged"
        places = [verdict.pivot.reference, verdict.pivot.suspect]
        assert next(place.text for place in places if place is not None) in ("table()", "other()", "x * table")


def test_work_of_another_kind_above_another_operator_is_noise(both):
    """Masks built in two ways, then joined by two operators: the joining pair is named, not what is above it."""

    def mask(names, joined):
        def change(s: Script, t: T) -> None:
            parts = [s.op(f"aten.{name}.default", [], size, Held(sum(name.encode())), at=f"{name}()", line=30) for name, size in names]
            made = s.op(f"aten.{joined}.default", parts, (4, 8), Held(sum(joined.encode())), at=f"{joined}(parts)", line=31)
            t["h"] = s.op("aten.add.Tensor", [t["h"], made], (4, 8), at="h + mask", line=32)

        return in_step(1, "after mm", change)

    verdict = both(mask([("tril", (3, 3)), ("triu", (2, 2))], "logical_and"), mask([("ge", (5, 5)), ("le", (6, 6))], "where"))
    assert verdict.verdict == "diverged"
    assert (verdict.pivot.reference.text, verdict.pivot.suspect.text) == ("logical_and(parts)", "where(parts)")


def test_lone_work_on_both_sides_of_one_consumer_stands_for_each_other():
    consumer = Node(0, 9, 9)
    left, right = Root(Node(0, 3, None), "structure", "out.0", (), consumer), Root(Node(0, None, 4), "structure", "out.0", (), consumer)
    assert merged([left, right]) == [Root(Node(0, 3, 4), "structure", "out.0", (), consumer)]
    assert merged([right, left]) == [Root(Node(0, 3, 4), "structure", "out.0", (), consumer)]


@pytest.mark.parametrize(
    "other",
    [
        Root(Node(0, None, 4), "structure", "out.0", (), Node(0, 8, 8)),
        Root(Node(0, 5, None), "structure", "out.0", (), Node(0, 9, 9)),
        Root(Node(1, None, 4), "structure", "out.0", (), Node(0, 9, 9)),
        Root(Node(0, 4, 4), "structure", "out.0", (), Node(0, 9, 9)),
    ],
)
def test_unrelated_roots_are_kept_apart(other):
    left = Root(Node(0, 3, None), "structure", "out.0", (), Node(0, 9, 9))
    assert merged([left, other]) == [left, other]


def test_state_that_differs_long_before_an_operator_shows_it_comes_first(both):
    """The update of a counter is lost at once, and only read much later."""

    def counter(stored):
        def twist(s: Script, place: str, t: T) -> None:
            if place == "batch" and s.window == 0:
                twist.count = s.op("aten.zeros.default", [], (3, 3), 0, at="zeros(())", name="optim:w.step", trivial=True)
            if place == "after backward" and s.window == 0:
                count = twist.count
                made = s.op("aten.add_.Tensor", [count], (3, 3), into=count, at="step.add_(1)", line=13) if stored else None
                if not stored:
                    s.op("aten.add.Tensor", [count], (3, 3), at="step + 1", line=13)
                twist.count = made or count
            if place == "after mm" and s.window == 3:
                t["h"] = s.op("aten.mul.Tensor", [t["h"], twist.count], (4, 8), at="h * step", line=15)
            if place == "after update":
                twist.extra = {"optim__step": twist.count}

        return twist

    def train_with(twist, steps):
        s = Script()
        w = s.given((8, 8), 2, name="param:w")
        for step in range(steps):
            t: dict[str, Tensor] = {"x": s.given((4, 8), 100 + step), "w": w}
            twist(s, "batch", t)
            t["h"] = s.op("aten.mm.default", [t["x"], w], (4, 8), at="x @ self.w", line=3)
            twist(s, "after mm", t)
            s.read(s.op("aten.sum.default", [t["h"]], (), at="h.sum()", line=6), line=9)
            twist(s, "after backward", t)
            s.state(param__w=w, optim__step=twist.count)
            s.update()
        return s.close()

    verdict = compare(train_with(counter(True), 5), train_with(counter(False), 5))
    assert verdict.verdict == "diverged"
    assert verdict.pivot.step == 0
    assert (verdict.pivot.reference.text, verdict.pivot.suspect.text) == ("step.add_(1)", "step + 1")
    never_read = compare(train_with(counter(True), 3), train_with(counter(False), 3))
    assert (never_read.verdict, never_read.pivot.suspect.text) == ("diverged", "step + 1")


@pytest.mark.parametrize("lacking", ["suspect", "reference"])
def test_a_copy_into_state_that_one_side_lacks_is_the_place_and_not_the_earlier_writer(lacking):
    """An average takes over a statistic that both sides have; where that copy is missing, it keeps what it was made from."""

    def train(copies):
        s = Script()
        w, made = s.given((8, 8), 2, name="param:w"), s.given((8,), 3)
        mean = s.op("aten.clone.default", [made], (8,), at="deepcopy(model)", line=2, name="buffer:ema.mean")
        for step in range(3):
            h = s.op("aten.mm.default", [s.given((4, 8), 100 + step), w], (4, 8), at="x @ self.w", line=3)
            statistic = s.op("aten.mean.dim", [h], (8,), at="h.mean(0)", line=4)
            s.read(s.op("aten.sum.default", [h], (), at="h.sum()", line=6), line=7)
            if copies:
                mean = s.op("aten.copy_.default", [mean, statistic], (8,), statistic.held, into=mean, at="mean.copy_(new)", line=8)
            s.state(param__w=w, buffer__mean=mean)
            s.update()
        return s.close()

    verdict = compare(train(lacking == "suspect"), train(lacking == "reference"))
    assert (verdict.verdict, verdict.pivot.step, verdict.pivot.origin) == ("diverged", 0, "structure")
    assert getattr(verdict.pivot, lacking) is None
    assert (verdict.pivot.suspect or verdict.pivot.reference).text == "mean.copy_(new)"


@pytest.mark.parametrize("alone", ["suspect", "reference"])
def test_of_two_writes_that_one_side_does_alone_the_one_done_first_is_the_place(alone):
    """A range that is still observed: its lower end is written before the upper one, and read after it."""

    def train(observes):
        s = Script()
        w, low, high = s.given((8, 8), 2, name="param:w"), s.given((8,), 3, name="buffer:low"), s.given((8,), 4, name="buffer:high")
        for step in range(3):
            h = s.op("aten.mm.default", [s.given((4, 8), 100 + step), w], (4, 8), at="x @ self.w", line=3)
            if step == 0 or (observes and step == 1):
                low = s.op(
                    "aten.copy_.default",
                    [low, s.op("aten.amin.default", [h], (8,), at="h.min(0)", line=4)],
                    into=low,
                    at="low.copy_()",
                    line=4,
                )
                high = s.op(
                    "aten.copy_.default",
                    [high, s.op("aten.amax.default", [h], (8,), at="h.max(0)", line=5)],
                    into=high,
                    at="high.copy_()",
                    line=5,
                )
            width = s.op("aten.sub.Tensor", [high, low], (8,), at="high - low", line=6)
            s.read(s.op("aten.div.Tensor", [h, width], (4, 8), at="h / width", line=7), line=8)
            s.state(param__w=w, buffer__low=low, buffer__high=high)
            s.update()
        return s.close()

    verdict = compare(train(alone == "reference"), train(alone == "suspect"))
    assert (verdict.verdict, verdict.pivot.step, verdict.pivot.origin) == ("diverged", 1, "structure")
    assert getattr(verdict.pivot, alone).text == "low.copy_()"


def averaging(*, module, factor="0.1", copies=3):
    """An average of weights and a copied counter, kept as a named module or as tensors of the program's own, updated after the state."""
    s = Script()
    w, count = s.given((8, 8), 2, name="param:w"), s.given((), 3, name="buffer:w.count")
    names = {"name": "param:average.w"} if module else {}
    mean = s.op("aten.clone.default", [w], (8, 8), w.held, at="deepcopy", line=2, **names)
    told = s.op("aten.clone.default", [count], (), count.held, at="deepcopy", line=2, name="buffer:average.count") if module else count
    for step in range(3):
        h = s.op("aten.mm.default", [s.given((4, 8), 100 + step), w], (4, 8), at="x @ w", line=3)
        s.read(h, at="loss.item()", line=4)
        w = s.op("aten.add_.Tensor", [w, s.given((8, 8), 200 + step)], (8, 8), into=w, at="opt.step()", line=8, phase="optimizer")
        count = s.op("aten.add_.Tensor", [count], (), into=count, at="count.add_(1)", line=9)
        kept = {"param__average.w": mean, "buffer__average.count": told} if module else {}
        s.state(param__w=w, **{"buffer__w.count": count}, **kept)
        s.update()
        mean = s.op("aten.lerp_.Scalar", [mean, w], (8, 8), into=mean, args=factor, at="mean.lerp_(w, f)", line=10, phase="data")
        if module and step < copies:
            told = s.op("aten.copy_.default", [told, count], (), count.held, into=told, at="a.copy_(b)", line=11, phase="data")
    s.marker("opguard.run.end")
    return s.close()


@pytest.mark.parametrize("mirrored", [False, True])
def test_an_average_kept_as_a_module_or_as_tensors_is_the_same_average(mirrored):
    sides = averaging(module=True), averaging(module=False)
    verdict = compare(*(sides[::-1] if mirrored else sides))
    assert (verdict.verdict, verdict.reasons) == ("identical", [])


@pytest.mark.parametrize("mirrored", [False, True])
def test_an_average_that_only_one_side_keeps_as_a_module_is_no_cover_for_another_factor(mirrored):
    sides = averaging(module=True), averaging(module=False, factor="0.2")
    verdict = compare(*(sides[::-1] if mirrored else sides))
    assert verdict.verdict == "diverged"
    assert (verdict.pivot.suspect.text, verdict.pivot.origin) == ("mean.lerp_(w, f)", "argument")


@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize("copies", [0, 2])
def test_a_copy_that_one_side_lacks_into_state_both_have_is_not_identical(copies, mirrored):
    """Never made at all, or not after the last update."""
    sides = averaging(module=True), averaging(module=True, copies=copies)
    assert compare(*(sides[::-1] if mirrored else sides)).verdict != "identical"


def test_logs_of_different_quantities_at_one_place_are_no_difference(both):
    """A helper that prints whatever it is given: the place alone does not make two reads the same."""

    def log(which):
        def change(s: Script, t: T) -> None:
            value = s.op("aten.amax.default", [t[which]], (), at="t.abs().max()", line=60, phase="data")
            s.read(value, at="log(t)", line=61, phase="data")

        return in_step(1, "after backward", change)

    verdict = both(log("g"), log("h"))
    assert verdict.verdict in ("identical", "inconclusive")
    assert verdict.pivot is None


def test_a_collective_paired_with_a_copy_hands_nothing_on(both):
    """Equal results, other operators: only two collectives can differ in what they send."""

    def made(operator, kind):
        def change(s: Script, t: T) -> None:
            sent = s.op("aten.sin.default", [t["x"]], (4, 8), sum(operator.encode()), at=f"{kind}(x)", line=63)
            s.op(operator, [sent], (4, 8), 4711, kind=kind, at="hand_on(sent)", line=64)

        return in_step(1, "after backward", change)

    assert both(made("c10d.allreduce_.default", "collective"), made("aten.copy_.default", "operator")).pivot is None


def draws(*plan):
    """A sampler that draws at the given steps: (step, state) pairs; only Python is told."""

    def twist(s: Script, place: str, t: T) -> None:
        for step, state in plan:
            if place == "batch" and s.window == step:
                order = s.op(
                    "aten.randperm.generator", [], (4, 8), Held(state, None, 1), at="for x in loader", line=2, rng=("cpu#1", state)
                )
                s.event("python.tolist", [s._slot("in.0", "in", order)], kind="read", at="for x in loader", line=2)
                s.free(order)

    return twist


def test_a_draw_made_at_another_time_is_no_difference(both):
    """A loader with workers fetches ahead: its last draw of an epoch comes earlier."""
    verdict = both(draws((0, 11), (1, 12), (1, 13), (2, 14)), draws((0, 11), (0, 12), (1, 13), (1, 14)), steps=(3, 3))
    assert (verdict.verdict, verdict.pivot) == ("identical", None)


def test_a_draw_that_the_other_side_never_makes_is_a_difference(both):
    verdict = both(draws((0, 11), (1, 12)), draws((0, 11), (1, 99)), steps=(3, 3))
    assert (verdict.verdict, verdict.pivot.origin) == ("diverged", "random-state")


def test_a_log_inside_the_optimizer_is_no_update(both):
    def log(which, content):
        def change(s: Script, t: T) -> None:
            s.op("aten.alias_copy.default", [t[which]], t[which].shape, content, at="watch(t)", line=62, phase="optimizer")

        return in_step(1, "after backward", change)

    verdict = both(log("g", 901), log("w", 902))
    assert verdict.pivot is None


@pytest.mark.parametrize("lone", [True, False])
def test_the_last_update_of_an_average_in_two_operators_is_missed_by_nobody(both, lone):
    """Scaled, then added to, after the last optimizer step, by a function that returns: its memory is freed with the program."""

    def twist(update):
        def change(s: Script, place: str, t: T) -> None:
            if place == "end":
                mean = twist.mean = s.op("aten.clone.default", [t["w"]], (8, 8), 900, at="w.clone()") if s.window == 1 else twist.mean
                mean = s.op("aten.mul_.Tensor", [mean], (8, 8), 901 + s.window, into=mean, at="mean.mul_(d)", line=20)
                if update or s.window < 3:
                    mean = s.op("aten.add_.Tensor", [mean, t["w"]], (8, 8), 920 + s.window, into=mean, at="mean.add_(w)", line=21)
                twist.mean = mean
                if s.window == 3:
                    s.free(mean)

        return change

    verdict = both(twist(True), twist(not lone), steps=(3, 3))
    assert (verdict.verdict, slugs(verdict)) == (("inconclusive", ["unresolved-difference"]) if lone else ("identical", []))
