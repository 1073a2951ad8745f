"""What fed a pivot: work of one side alone, or work that both sides do in another order around it."""

from __future__ import annotations

from opguard_core.certify.answer import to_dict
from opguard_core.certify.compare import compare
from opguard_core.certify.feeding import feeding, reordered
from tests.support.script import Script
from tests.unit.certify.conftest import train
from tests.unit.certify.test_origins import T, in_step


def scale(s: Script, t: T) -> None:
    t["g"] = s.op("aten.mul_.Tensor", [t["g"]], (8, 8), into=t["g"], at="unscale(g)", line=40, phase="optimizer")


def norm(s: Script, t: T) -> None:
    t["n"] = s.op("aten.norm.default", [t["g"]], (), at="clip(g)", line=41, phase="optimizer")
    t["g"] = s.op("aten.div_.Tensor", [t["g"], t["n"]], (8, 8), into=t["g"], at="g / n", line=42, phase="optimizer")


def found(folder, *orders):
    """Verdict, and both kinds of work, of trainings with these changes after their backward pass."""

    def all_of(order):
        def change(s: Script, t: T) -> None:
            for one in order:
                one(s, t)

        return in_step(1, "after backward", change)

    runs = []
    for number, order in enumerate(orders):
        script = Script(folder / str(number))
        train(script, twist=all_of(order))
        runs.append(script.close())
    verdict = compare(*runs)
    pivot = to_dict(verdict)["pivot"]
    traces = [run.ranks[0] for run in runs]
    return verdict, feeding(*traces, pivot), reordered(*traces, pivot)


def test_work_that_comes_before_on_one_side_and_after_on_the_other_is_named_with_both_events(tmp_path):
    verdict, alone, moved = found(tmp_path, (scale, norm), (norm, scale))
    assert verdict.pivot.origin == "structure"
    assert verdict.pivot.suspect.text == "clip(g)"
    assert alone == []
    assert [item["operator"] for item in moved] == ["aten.mul_.Tensor"]
    (item,) = moved
    assert item["seq"]["reference"] < verdict.pivot.seq.reference
    assert item["seq"]["suspect"] > verdict.pivot.seq.suspect


def test_the_same_holds_when_the_sides_swap(tmp_path):
    _, _, moved = found(tmp_path, (norm, scale), (scale, norm))
    assert [item["operator"] for item in moved] == ["aten.mul_.Tensor"]


def test_nothing_is_in_another_order_around_work_of_one_side_alone(tmp_path):
    verdict, _, moved = found(tmp_path, (norm,), (scale, norm))
    assert verdict.pivot.seq.reference is None
    assert moved == []
