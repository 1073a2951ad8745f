"""Work that no boundary stands for bounds a verdict where it may have written what the verdict speaks of, and nowhere else."""

import dataclasses

import pytest

from opguard_core.certify.compare import compare
from tests.support.launch_rows import CUSTOM, TILE
from tests.support.script import Script
from tests.unit.certify.conftest import slugs, train

WATCHED = {"launches": {"active": True, "recorded": 9, "lost": 0, "escaped": 0}}
SLUG = "unattributed-work"


def loose_at(where, **facts):
    def twist(s, place, t):
        if place == "after mm" and s.launches == []:
            s.launched(TILE)
        if place == where:
            s.loose(CUSTOM, **facts)

    return twist


def run(twist=None, mode="verify", steps=2, engines=WATCHED):
    script = Script(mode=mode)
    train(script, steps=steps, twist=twist)
    return script.close(engines=engines)


def test_touching_work_forbids_identical():
    verdict = compare(run(loose_at("after mm")), run(loose_at("after mm")))
    assert (verdict.verdict, slugs(verdict)) == ("inconclusive", [SLUG, SLUG])
    text = verdict.reasons[0].text
    assert CUSTOM in text
    assert "2 pieces" in text
    assert "custom_op" in verdict.reasons[0].fix


def test_one_side_is_enough():
    verdict = compare(run(), run(loose_at("after mm")))
    assert (verdict.verdict, slugs(verdict)) == ("inconclusive", [SLUG])
    assert "suspect" in verdict.reasons[0].text


def test_a_replay_forbids_identical_though_its_kernels_have_an_operator():
    def replays(s, place, t):
        if place == "after mm" and s.window == 0:
            s.captured = s.seq - 1
        if place == "after gelu" and s.window == 1:
            s.replayed(s.captured, TILE, 2)

    verdict = compare(run(replays), run(replays))
    assert (verdict.verdict, slugs(verdict)) == ("inconclusive", [SLUG, SLUG])
    assert f"{TILE} (replayed) x2" in verdict.reasons[0].text
    work = verdict.device_work["suspect"]["0"]
    assert (work["launches"], work["attributed"], work["touching"], work["unattributed_total"]) == (2, 2, 2, 0)
    assert [(row["operator"], row["launches"]) for row in work["operators"]] == [("aten.mm.default", 2)]


def test_whether_it_touches_is_taken_for_true_where_nobody_knows():
    assert compare(run(), run(loose_at("after mm", touches=None))).verdict == "inconclusive"


def test_work_on_memory_that_nobody_observed_does_not_count():
    verdict = compare(run(loose_at("after mm", touches=False)), run())
    assert verdict.verdict == "identical"
    assert verdict.device_work["reference"]["0"]["unattributed_total"] == 1


def test_work_after_everything_that_was_compared_does_not_count():
    def last(s, place, t):
        if place == "end" and s.window == 2:
            s.loose(CUSTOM)

    assert compare(run(last), run(last)).verdict == "identical"


def test_work_before_the_first_boundary_does_not_count():
    script = Script()
    script.loose(CUSTOM)
    train(script)
    assert compare(script.close(engines=WATCHED), run()).verdict == "identical"


@pytest.mark.parametrize("engines", [{}, {"launches": {"active": False, "reason": "static"}}])
def test_traces_without_the_table_are_judged_as_before(engines):
    assert compare(run(engines=engines), run(engines=engines)).verdict == "identical"


def test_records_lost_are_told_and_bound_nothing():
    engines = {"launches": {**WATCHED["launches"], "lost": 5}}
    verdict = compare(run(engines=engines), run(engines=engines))
    assert verdict.verdict == "identical"
    assert verdict.device_work["suspect"]["0"]["lost"] == 5


def operator_pivot(suspect_more, mode="verify"):
    """gelu gives other bytes on the suspect; what is launched around it is up to the caller."""

    def program(content, more):
        s = Script(mode=mode)
        w = s.given((8, 8), 2, name="param:w")
        x = s.given((4, 8), 3)
        h = s.op("aten.mm.default", [x, w], (4, 8), 5, at="x @ w", line=3)
        s.launched(TILE)
        h = more(s, h) or h
        a = s.op("aten.gelu.default", [h], (4, 8), content, at="F.gelu(h)", line=4)
        s.launched("gelu_kernel")
        loss = s.op("aten.sum.default", [a], (), content + 1, at="a.sum()", line=5)
        s.read(loss, line=9)
        s.state(param__w=w)
        s.update()
        return s.close(engines=WATCHED)

    return compare(program(6, suspect_more), program(60, suspect_more))


def nothing(s, h):
    return None


def test_without_any_the_pivot_stands():
    verdict = operator_pivot(nothing)
    assert (verdict.verdict, verdict.pivot.operator, verdict.pivot.kernels["how"]) == ("diverged", "aten.gelu.default", "equal")


def test_an_input_that_was_looked_at_again_excludes_work_before_it():
    verdict = operator_pivot(lambda s, h: s.loose(CUSTOM))
    assert (verdict.verdict, verdict.pivot.operator) == ("diverged", "aten.gelu.default")


def test_an_input_that_was_only_carried_does_not():
    def between(s, h):
        s.loose(CUSTOM)
        return dataclasses.replace(h, status="carried")

    verdict = operator_pivot(between, mode="full")
    assert (verdict.verdict, verdict.pivot) == ("inconclusive", None)
    assert SLUG in slugs(verdict)
    reason = next(reason for reason in verdict.reasons if reason.slug == SLUG)
    assert "after what the first difference read was written" in reason.text
    assert "--mode verify" in reason.fix


def test_work_before_the_producer_of_a_carried_input_does_not_count():
    def program(content):
        s = Script(mode="full")
        w = s.given((8, 8), 2, name="param:w")
        first = s.op("aten.mm.default", [s.given((4, 8), 3), w], (4, 8), 5, at="x @ w", line=3)
        s.loose(CUSTOM)
        h = s.op("aten.mul.Tensor", [first, first], (4, 8), 7, at="h * h", line=4)
        a = s.op("aten.gelu.default", [dataclasses.replace(h, status="carried")], (4, 8), content, at="F.gelu(h)", line=5)
        s.read(s.op("aten.sum.default", [a], (), content + 1, at="a.sum()", line=6), line=9)
        s.state(param__w=w)
        s.update()
        return s.close(engines=WATCHED)

    assert compare(program(6), program(60)).verdict == "diverged"


def test_bytes_that_changed_behind_everybodys_back_may_be_its_doing():
    def program(content, loose):
        s = Script()
        w = s.given((8, 8), 2, name="param:w")
        h = s.op("aten.mm.default", [s.given((4, 8), 3), w], (4, 8), 5, at="x @ w", line=3)
        if loose:
            s.loose(CUSTOM)
        a = s.op("aten.gelu.default", [h.holding(content)], (4, 8), content + 1, at="F.gelu(h)", line=4)
        s.read(s.op("aten.sum.default", [a], (), content + 2, at="a.sum()", line=5), line=9)
        s.state(param__w=w)
        s.update()
        return s.close(engines=WATCHED)

    plain = compare(program(5, False), program(50, False))
    assert (plain.verdict, plain.pivot.origin) == ("diverged", "mutated")
    doubtful = compare(program(5, True), program(50, True))
    assert (doubtful.verdict, set(slugs(doubtful))) == ("inconclusive", {SLUG})


def test_the_mirrored_comparison_gives_the_mirrored_answer():
    one, other = compare(run(), run(loose_at("after mm"))), compare(run(loose_at("after mm")), run())
    assert slugs(one) == slugs(other)
    assert one.device_work["suspect"] == other.device_work["reference"]


def lacking(loose):
    """The suspect lacks an operator, and reads what was there before; work of nobody may have done it."""

    def program(whole):
        s = Script(mode="full")
        w = s.given((8, 8), 2, name="param:w")
        h = s.op("aten.mm.default", [s.given((4, 8), 3), w], (4, 8), 5, at="x @ w", line=3)
        if whole:
            h = s.op("aten.relu_.default", [h], (4, 8), 7, into=h, at="h.relu_()", line=4)
        elif loose:
            s.loose(CUSTOM)
        a = s.op("aten.gelu.default", [h], (4, 8), at="F.gelu(h)", line=5)
        s.read(s.op("aten.sum.default", [a], (), at="a.sum()", line=6), line=9)
        s.state(param__w=w)
        s.update()
        return s.close(engines=WATCHED)

    return compare(program(True), program(False))


def test_an_operator_that_one_side_lacks_may_have_been_done_by_it():
    plain, doubtful = lacking(False), lacking(True)
    assert (plain.verdict, plain.pivot.origin) == ("diverged", "structure")
    assert (doubtful.verdict, set(slugs(doubtful))) == ("inconclusive", {SLUG})


def test_work_of_nobody_elsewhere_leaves_an_operator_that_one_side_lacks():
    def program(whole):
        s = Script(mode="full")
        w = s.given((8, 8), 2, name="param:w")
        s.op("aten.cos.default", [w], (8, 8), at="w.cos()", line=2)
        s.loose(CUSTOM)
        h = s.op("aten.mm.default", [s.given((4, 8), 3), w], (4, 8), 5, at="x @ w", line=3)
        if whole:
            h = s.op("aten.relu_.default", [h], (4, 8), 7, into=h, at="h.relu_()", line=4)
        a = s.op("aten.gelu.default", [h], (4, 8), at="F.gelu(h)", line=5)
        s.read(s.op("aten.sum.default", [a], (), at="a.sum()", line=6), line=9)
        s.state(param__w=w)
        s.update()
        return s.close(engines=WATCHED)

    verdict = compare(program(True), program(False))
    assert (verdict.verdict, verdict.pivot.origin) == ("diverged", "structure")
