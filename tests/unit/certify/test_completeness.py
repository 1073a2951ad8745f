"""What was not there to be compared forbids `identical`, in the last window and in programs without an optimizer as well."""

from opguard_core.certify import completeness
from opguard_core.certify.compare import compare
from tests.support.memory import MemoryTrace, memory_run
from tests.support.script import Script
from tests.unit.certify.conftest import slugs, train
from tests.unit.certify.test_origins import T, in_step


def chain(operator, count=30):
    """A program without an optimizer: one operator after another."""
    script = Script()
    held = script.given((4, 8), 1)
    for at in range(count):
        held = script.op(operator, [held], (4, 8), at=f"{operator}({at})", line=at + 1)
    return script.close()


def evaluated(operator, count=20):
    """The tiny training, and an evaluation after its last update."""
    script = Script()
    train(script)
    held = script.given((4, 8), 77)
    for at in range(count):
        held = script.op(operator, [held], (4, 8), at=f"evaluate({at})", line=60 + at, phase="eval")
    return script.close()


def test_programs_without_an_optimizer_that_share_nothing_are_not_identical():
    verdict = compare(chain("aten.gelu.default"), chain("aten.cumsum.default"))
    assert verdict.verdict == "inconclusive"
    assert "low-coverage" in slugs(verdict)
    assert compare(chain("aten.gelu.default"), chain("aten.gelu.default")).verdict == "identical"


def test_two_evaluations_that_share_nothing_are_not_identical():
    verdict = compare(evaluated("aten.gelu.default"), evaluated("aten.cumsum.default"))
    assert (verdict.verdict, slugs(verdict)) == ("inconclusive", ["low-coverage"])


def test_an_evaluation_that_only_one_side_does_hides_nothing():
    plain = Script()
    train(plain)
    assert compare(plain.close(), evaluated("aten.gelu.default")).verdict == "identical"


def test_a_parameter_is_not_hidden_behind_gradients():
    def run(content):
        script = Script()
        train(script)
        grads = {f"grad__g{at}": script.given((8, 8), 1000 + at + content, name=f"grad:g{at}") for at in range(100)}
        w = script.given((8, 8), 5000 + content, name="param:z")
        script.state(**grads, param__z=w)
        script.update()
        return script.close()

    assert compare(run(0), run(0)).verdict == "identical"
    verdict = compare(run(0), run(7))
    assert verdict.verdict == "diverged"
    assert verdict.pivot.slot == "param:z"


def test_a_last_update_of_an_average_that_one_side_lacks_is_unresolved():
    def run(updates, *, meter=False):
        script = Script()
        w = script.given((8, 8), 2, name="param:w")
        average, log = script.given((8, 8), 3), script.given((4, 4), 4)
        for step in range(3):
            g = script.op("aten.mm.default", [w, script.given((8, 8), 50 + step)], (8, 8), at="loss.backward()", phase="backward")
            w = script.op("aten.add_.Tensor", [w, g], (8, 8), into=w, at="opt.step()", line=8, phase="optimizer")
            script.state(param__w=w)
            script.update()
            if step < updates:
                average = script.op("aten.lerp_.Scalar", [average, w], (8, 8), into=average, at="ema.lerp_(w, 0.1)", line=10, phase="data")
            if meter:
                log = script.op("aten.add_.Tensor", [log, w], (4, 4), into=log, at="meter.add_(w.mean())", line=12, phase="data")
        script.marker("opguard.run.end")
        return script.close()

    assert compare(run(3), run(3)).verdict == "identical"
    for sides in ((run(3), run(2)), (run(2), run(3))):
        verdict = compare(*sides)
        assert (verdict.verdict, slugs(verdict)) == ("inconclusive", ["unresolved-difference"])
    assert compare(run(3), run(3, meter=True)).verdict == "identical", "a meter that only one side keeps is its own affair"


def test_ranks_that_left_no_trace_forbid_identical():
    def run():
        script = Script(world_size=4)
        train(script)
        script.close()
        return memory_run([MemoryTrace(script.writer, script.writer.manifest)])

    verdict = compare(run(), run())
    assert verdict.verdict == "inconclusive"
    assert set(slugs(verdict)) == {"rank-missing"}


def test_two_sides_that_end_by_an_error_are_not_identical():
    def run(ended):
        script = Script()
        train(script)
        return script.close(ended=ended)

    assert compare(run("exit"), run("exit")).verdict == "identical"
    for ended in ("exception", "signal"):
        verdict = compare(run(ended), run(ended))
        assert (verdict.verdict, slugs(verdict)) == ("inconclusive", ["ended-early", "ended-early"])


def test_nothing_in_common_is_no_verdict():
    def only(operator):
        script = Script()
        script.op(operator, [], (4,), sum(operator.encode()))
        return script.close()

    verdict = compare(only("aten.sin.default"), only("aten.cos.default"))
    assert verdict.verdict == "inconclusive"
    assert "nothing-compared" in slugs(verdict)


def test_too_few_results_with_a_counterpart(both, monkeypatch):
    monkeypatch.setattr(completeness, "ENOUGH_RESULTS", 4)

    def twist(word):
        def change(s: Script, t: T) -> None:
            for at in range(20):
                s.op(f"aten.op{word}{at}.default", [t["x"]], (4, 8), word * 100 + at, at=f"noise{word}()")

        return in_step(0, "after mm", change)

    verdict = both(twist(1), twist(2))
    assert (verdict.verdict, slugs(verdict)) == ("inconclusive", ["low-coverage"])
    assert verdict.compared["accounted_share"]["suspect"] < 0.6
