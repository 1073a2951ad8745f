"""Every reason why a verdict is not stronger: planted, named with its slug, and with a fix."""

from __future__ import annotations

import itertools
from string import Formatter

import pytest

from opguard_core.certify import completeness, harmless, matters
from opguard_core.certify.compare import compare
from opguard_core.certify.reasons import _TEXTS, SLUGS, reason
from opguard_core.trace.problems import TornTail
from tests.support.memory import MemoryTrace, MemoryWriter, memory_run
from tests.support.script import Held, Script
from tests.unit.certify.conftest import train
from tests.unit.certify.test_origins import T, clone, in_step, other


def slugs(verdict):
    return [entry.slug for entry in verdict.reasons]


def traced(twist=None, *, steps=2, torn=None, dropped=(), ended="exit", rank=0, **closing):
    """One rank, with what a writer would not do on purpose."""
    script = Script(rank=rank)
    train(script, steps=steps, twist=twist)
    script.close(ended=ended, **closing)
    return MemoryTrace(script.writer, script.writer.manifest, torn=torn, dropped=dropped)


def test_every_reason_has_a_text_and_a_fix():
    for slug in SLUGS:
        wanted = {name for part in _TEXTS[slug] for _, name, _, _ in Formatter().parse(part) if name}
        entry = reason(slug, **dict.fromkeys(wanted, 1))
        assert entry.slug == slug
        assert entry.text.endswith(".") or entry.text.endswith("1")
        assert entry.fix.endswith(".") or entry.fix == "1"


def test_a_torn_trace_that_is_equal_so_far_is_inconclusive():
    torn = TornTail("not-finished", "The writer did not finish.", 9, "memory")
    verdict = compare(memory_run([traced()]), memory_run([traced(torn=torn, ended="unknown")]))
    assert verdict.verdict == "inconclusive"
    assert "torn-trace" in slugs(verdict)
    assert "The writer did not finish." in verdict.reasons[0].text


def test_a_torn_trace_still_diverges_where_it_differs():
    torn = TornTail("not-finished", "The writer did not finish.", 9, "memory")
    verdict = compare(memory_run([traced(clone())]), memory_run([traced(clone(Held(5)), torn=torn)]))
    assert verdict.verdict == "diverged"


def lossy(at_window):
    """A twist that loses three events."""

    def twist(s, place, t):
        if place == "after mm" and s.window == at_window:
            s.seq += 3

    return twist


@pytest.mark.parametrize(("window", "word"), [(0, "inconclusive"), (1, "inconclusive")])
def test_records_lost_before_a_difference_may_hide_an_earlier_one(window, word):
    script = Script()
    train(script, twist=lossy(window))
    script.close()
    lost = [event.seq for event in script.writer.rows["events"]]
    hole = next((a + 1, b - 1) for a, b in itertools.pairwise(lost) if b - a > 1)
    clean = traced(clone(Held(6)))
    verdict = compare(memory_run([MemoryTrace(script.writer, script.writer.manifest, dropped=(hole,))]), memory_run([clean]))
    assert verdict.verdict == word
    assert slugs(verdict) == ["dropped-records"]
    assert "3 records" in verdict.reasons[0].text
    assert verdict.pivot is None
    assert verdict.rank_firsts


def test_records_lost_after_the_difference_do_not_matter():
    def late(s, place, t):
        if place == "end" and s.window == 2:
            s.seq += 3
            s.op("aten.sin.default", [t["x"]], (4, 8))

    script = Script()
    train(script, twist=late)
    script.close()
    lost = [event.seq for event in script.writer.rows["events"]]
    hole = next((a + 1, b - 1) for a, b in itertools.pairwise(lost) if b - a > 1)
    broken = MemoryTrace(script.writer, script.writer.manifest, dropped=(hole,))
    verdict = compare(memory_run([traced(in_step(0, "batch", lambda s, t: t.update(x=other(t["x"]))))]), memory_run([broken]))
    assert verdict.verdict == "diverged"


def test_a_gap_event_before_the_difference():
    def gap(s, place, t):
        if place == "batch" and s.window == 0:
            s.event("aten.foo.default", [], kind="gap", args="probe failed")

    verdict = compare(memory_run([traced()]), memory_run([traced(gap)]))
    assert slugs(verdict) == ["gap"]


def test_work_that_nobody_saw_and_that_touched_what_was_seen():
    coverage = {"gaps": {"extension": {"count": 3, "touches_state": True}, "harmless": {"count": 1, "touches_state": False}, "odd": 5}}
    verdict = compare(memory_run([traced()]), memory_run([traced(coverage=coverage)]))
    assert slugs(verdict) == ["unobserved-work"]
    assert "extension (3)" in verdict.reasons[0].text and "harmless" not in verdict.reasons[0].text
    assert verdict.coverage["suspect"]["0"] == coverage


@pytest.mark.parametrize("coverage", [{"gaps": []}, {}])
def test_coverage_of_another_shape_says_nothing(coverage):
    assert compare(memory_run([traced()]), memory_run([traced(coverage=coverage)])).verdict == "identical"


def test_ranks_that_only_one_side_has():
    verdict = compare(memory_run([traced()]), memory_run([traced(), traced(rank=1)]))
    assert slugs(verdict) == ["ranks-differ"]
    assert "suspect [1]" in verdict.reasons[0].text


def test_a_rank_that_left_no_trace():
    run = memory_run([traced()])
    run.manifest.ranks = [0, 1]
    verdict = compare(run, memory_run([traced()]))
    assert slugs(verdict) == ["rank-missing"]
    assert "Rank 1 of the reference" in verdict.reasons[0].text


def test_no_common_rank_compares_nothing():
    verdict = compare(memory_run([traced()]), memory_run([traced(rank=1)]))
    assert verdict.verdict == "inconclusive"
    assert {"ranks-differ", "rank-missing"} <= set(slugs(verdict))


@pytest.mark.parametrize("end", ["exception", "signal"])
def test_a_crash_on_one_side_compares_what_exists_and_says_so(end):
    verdict = compare(memory_run([traced(steps=3)]), memory_run([traced(steps=2, ended=end)]))
    assert verdict.verdict == "inconclusive"
    assert "ended-early" in slugs(verdict)
    assert verdict.compared["parameter_updates"] == 2
    crashed = compare(memory_run([traced(clone(), steps=3)]), memory_run([traced(clone(Held(5)), steps=2, ended=end)]))
    assert crashed.verdict == "diverged"


def test_unequal_lengths_compare_the_common_steps_and_say_so(both):
    verdict = both(None, None, steps=(2, 4))
    assert verdict.verdict == "inconclusive"
    assert slugs(verdict) == ["unequal-length"]
    assert "steps 0 to 1 are in both, the suspect has 2 more" in verdict.reasons[0].text
    assert verdict.compared["steps_only_in"]["suspect"] == [3, 4]


def test_a_difference_in_the_common_steps_counts_whatever_the_lengths(both):
    assert both(clone(), clone(Held(5)), steps=(2, 4)).verdict == "diverged"


def test_steps_that_do_not_overlap():
    def shifted(by):
        script = Script()
        script.window = by
        train(script)
        return script.close()

    verdict = compare(shifted(0), shifted(50))
    assert verdict.verdict == "inconclusive"
    assert "steps-not-overlapping" in slugs(verdict)


def test_sides_recorded_in_different_modes():
    script = Script(mode="full")
    train(script)
    verdict = compare(memory_run([traced()]), script.close())
    assert slugs(verdict) == ["plan-mismatch"]
    assert verdict.mode == "full"


def test_a_contract_conflict_is_a_reason_only_where_it_may_explain_the_difference():
    same = [memory_run([traced()]) for _ in range(2)]
    assert compare(*same, contract_conflicts=["torch.version"]).verdict == "identical"
    lone = [memory_run([traced()]), memory_run([traced(clone())])]
    assert compare(*lone, contract_conflicts=["torch.version"]).reasons == compare(*lone).reasons


def test_processes_that_nobody_observed_forbid_identical():
    runs = [memory_run([traced()]) for _ in range(2)]
    assert compare(*runs).verdict == "identical"
    runs[1].manifest.extra["gaps"] = [{"slug": "uncaptured-rank", "text": "Process 7 joined.", "fix": "Use torchrun."}]
    verdict = compare(*runs)
    assert (verdict.verdict, slugs(verdict)) == ("inconclusive", ["uncaptured-process"])
    assert (verdict.reasons[0].fix, "Process 7" in verdict.reasons[0].text) == ("Use torchrun.", True)


def test_work_hidden_in_front_of_the_difference_forbids_a_pivot():
    def run(first_seq):
        traces = [traced(twist) for twist in (clone(), clone(Held(5)))]
        traces[1].manifest.coverage["gaps"] = {"unreadable-tensor": {"count": 1, "touches_state": True, "first_seq": first_seq}}
        return compare(*[memory_run([trace]) for trace in traces])

    late, early = run(10_000), run(0)
    assert late.verdict == "diverged"
    assert (early.verdict, slugs(early)) == ("inconclusive", ["unobserved-work"])


def test_a_contract_conflict_is_a_reason_for_an_operator_that_disagrees():
    run = [memory_run([traced(twist)]) for twist in (clone(), clone(Held(5)))]
    verdict = compare(*run, contract_conflicts=["torch.version"])
    assert (verdict.verdict, slugs(verdict)) == ("inconclusive", ["contract-conflict"])
    assert verdict.pivot is None
    assert len(verdict.rank_firsts) == 1


def test_differences_between_operators_paired_by_name_alone(both):
    def scalars(values, names):
        def change(s: Script, t: T) -> None:
            made = [s.op("aten.full.default", [], (4, 8), v, at=n, trivial=True) for v, n in zip(values, names, strict=True)]
            for at, tensor in enumerate(made):
                s.read(tensor, at=f"log{names[at]}")

        return in_step(1, "after mm", change)

    verdict = both(scalars([1, 2], ["a()", "b()"]), scalars([7, 8], ["c()", "d()"]))
    assert verdict.verdict == "identical"  # nothing sure reads them


def test_a_difference_that_only_a_guessed_pair_shows_is_inconclusive(both):
    def twist(values, names):
        def change(s: Script, t: T) -> None:
            made = [s.op("aten.full.default", [], (4, 8), v, at=n, trivial=True) for v, n in zip(values, names, strict=True)]
            for tensor in made:
                t["h"] = s.op("aten.add.Tensor", [t["h"], tensor], (4, 8), at="h + m", line=31)

        return in_step(1, "after mm", change)

    verdict = both(twist([1, 2], ["a()", "b()"]), twist([7, 8], ["c()", "d()"]))
    assert verdict.verdict == "diverged"  # the sure consumer leads back to the constants, pair by pair
    assert verdict.pivot.suspect.text == "c()"


def workspace(content, *, consumer):
    """An operator with a second output that is a scratch buffer."""

    def change(s: Script, t: T) -> None:
        first = s.op("aten.mkldnn_rnn_layer.default", [t["h"]], (4, 8), 900, at="self.rnn(h)", line=30, more=[((16,), Held(content))])
        scratch = s.outs(first, 1)[0]
        scratch = type(scratch)(scratch.storage, (16,), Held(content))
        t["h"] = first
        if consumer is not None:
            consumer(s, t, scratch)

    return in_step(1, "after mm", change)


def test_a_workspace_that_nobody_reads_is_isolated(both):
    verdict = both(workspace(1, consumer=None), workspace(2, consumer=None))
    assert verdict.verdict in ("identical", "inconclusive")
    assert [pivot.suspect.text for pivot in verdict.isolated] == ["self.rnn(h)"] or slugs(verdict) == ["unresolved-difference"]


def test_a_workspace_whose_reader_agrees_is_isolated(both):
    def consumer(s, t, scratch):
        s.op("aten.mkldnn_rnn_layer_backward.default", [t["h"], scratch], (4, 8), 950, at="loss.backward()", phase="backward")
        s.free(scratch)

    verdict = both(workspace(1, consumer=consumer), workspace(2, consumer=consumer))
    assert verdict.verdict == "identical"
    assert [(pivot.suspect.text, pivot.slot) for pivot in verdict.isolated] == [("self.rnn(h)", "out.1")]


def test_a_workspace_that_alone_explains_a_difference_counts(both):
    def consumer(s, t, scratch):
        t["h"] = s.op("aten.add.Tensor", [t["h"], scratch], (4, 8), at="h + scratch", line=31)
        s.free(scratch)

    verdict = both(workspace(1, consumer=consumer), workspace(2, consumer=consumer))
    assert verdict.verdict == "diverged"
    assert (verdict.pivot.suspect.text, verdict.pivot.slot) == ("self.rnn(h)", "out.1")


def test_a_workspace_that_is_printed_counts(both):
    verdict = both(*[workspace(value, consumer=lambda s, t, scratch: s.read(scratch, at="print(scratch)")) for value in (1, 2)])
    assert verdict.verdict == "diverged"
    assert verdict.pivot.suspect.text == "self.rnn(h)"


def test_a_workspace_that_cannot_be_told_from_other_differences_is_inconclusive(both):
    def consumer(value):
        def read(s, t, scratch):
            names = [f"{name}{value}()" for name in "ab"]
            noise = [s.op("aten.full.default", [], (16,), value + at, at=name, trivial=True) for at, name in enumerate(names)]
            mixed = s.op("aten.stack.default", [scratch, *noise], (3, 16), at="torch.stack(all)", line=31)
            s.read(mixed, at="print(mixed)", line=32)

        return read

    verdict = both(workspace(1, consumer=consumer(10)), workspace(2, consumer=consumer(20)))
    assert verdict.verdict == "diverged" or slugs(verdict)[0] in ("low-confidence", "auxiliary-output")
    assert verdict.pivot is None or verdict.pivot.suspect.text != "self.rnn(h)"


def test_a_difference_alive_at_the_end_is_unresolved(both):
    def kept(content):
        return in_step(1, "tail", lambda s, t: s.op("aten.sin.default", [t["x"]], (4, 8), content, at="keep(x)"))

    def twist(content):
        def change(s: Script, t: T) -> None:
            s.op("aten.sin.default", [t["x"]], (4, 8), content, at="keep(x)", line=30)

        return in_step(1, "after mm", change)

    del kept
    verdict = both(twist(5), twist(6))
    assert (verdict.verdict, slugs(verdict)) == ("inconclusive", ["unresolved-difference"])
    assert "model.py:30" in verdict.reasons[0].text


def test_a_difference_that_is_freed_is_isolated_and_named(both):
    def twist(content):
        def change(s: Script, t: T) -> None:
            kept = s.op("aten.sin.default", [t["x"]], (4, 8), content, at="keep(x)", line=30)
            s.op("aten.gt.Scalar", [kept], (4, 8), 77, at="keep(x) > 0", line=31)
            s.free(kept)

        return in_step(1, "after mm", change)

    verdict = both(twist(5), twist(6))
    assert verdict.verdict == "identical"
    (pivot,) = verdict.isolated
    assert (pivot.suspect.text, pivot.step, pivot.slot) == ("keep(x)", 1, "out.0")


def test_what_follows_an_isolated_difference_is_not_named_again(both):
    def twist(content):
        def change(s: Script, t: T) -> None:
            first = s.op("aten.sin.default", [t["x"]], (4, 8), content, at="keep(x)", line=30)
            second = s.op("aten.cos.default", [first], (4, 8), content + 10, at="cos(kept)", line=31)
            s.op("aten.gt.Scalar", [second], (4, 8), 77, at="kept > 0", line=32)
            s.free(first)
            s.free(second)

        return in_step(1, "after mm", change)

    assert [pivot.suspect.text for pivot in both(twist(5), twist(6)).isolated] == ["keep(x)"]


def test_harmless_differences_beyond_the_limit_are_counted(both, monkeypatch):
    monkeypatch.setattr(harmless, "MAX_LISTED", 2)

    def twist(content):
        def change(s: Script, t: T) -> None:
            for at in range(4):
                kept = s.op("aten.sin.default", [t["x"]], (4, 8), content + at, at=f"keep{at}(x)", args=f"n={at}")
                s.op("aten.gt.Scalar", [kept], (4, 8), 70 + at, at=f"use{at}()")
                s.free(kept)

        return in_step(1, "after mm", change)

    verdict = both(twist(100), twist(200))
    assert verdict.verdict == "identical"
    assert len(verdict.isolated) == 2
    assert verdict.compared["isolated_not_listed"] == 2


def test_an_update_that_is_never_read_again_is_not_identical(both):
    """The last update of a parameter is missing: only the state boundary can show it."""

    def missing(s: Script, place: str, t: T) -> None:
        if place == "after update" and s.window == 1:
            t["w"] = s.op("aten.mul_.Tensor", [t["w"]], (8, 8), into=t["w"], at="w.mul_(decay)", line=12, phase="optimizer")

    verdict = both(missing, None)
    assert verdict.verdict == "diverged"
    assert (verdict.pivot.origin, verdict.pivot.reference.text, verdict.pivot.suspect) == ("structure", "w.mul_(decay)", None)


def test_a_value_computed_but_not_stored_is_found_where_it_was_computed(both):
    """Both sides compute the update; one stores it elsewhere and nothing reads it again."""

    def lost(s: Script, place: str, t: T) -> None:
        if place == "after backward" and s.window == 1:
            fresh = s.op("aten.clone.default", [t["w"]], (8, 8), t["w"].held, at="w.clone()", line=11)
            s.op("aten.add_.Tensor", [fresh, t["g"]], (8, 8), into=fresh, at="opt.step()", line=8, phase="optimizer")

    def without_update(script, lose):
        w = script.given((8, 8), 2, name="param:w")
        x = script.given((4, 8), 3)
        g = script.op("aten.mm.default", [x, w], (8, 8), at="loss.backward()", line=7, phase="backward")
        target = script.op("aten.clone.default", [w], (8, 8), w.held, at="w.clone()", line=6) if lose else w
        script.op("aten.add_.Tensor", [target, g], (8, 8), into=target, at="opt.step()", line=8, phase="optimizer")
        new = script._derived("aten.add_.Tensor", {}, [w, g])
        script.state(param__w=w if lose else w.holding(new))
        script.update()
        return script.close()

    del lost
    verdict = compare(without_update(Script(), False), without_update(Script(), True))
    assert verdict.verdict == "diverged"
    assert verdict.pivot.suspect.text == "opt.step()"
    assert verdict.pivot.origin == "structure"


def test_a_state_difference_that_the_next_step_reads_is_found_at_the_reader(both):
    def counter(stored):
        def twist(s: Script, place: str, t: T) -> None:
            if place == "batch" and s.window == 0:
                twist.count = s.op("aten.zeros.default", [], (), 0, at="zeros(())", name="optim:w.step")
            if place == "after update":
                count = twist.count
                if stored:
                    twist.count = s.op("aten.add_.Tensor", [count], (), into=count, at="step.add_(1)", line=13, phase="optimizer")
                else:
                    s.op("aten.add.Tensor", [count], (), at="step + 1", line=13, phase="optimizer")
                s.state(param__w=t["w"], optim__step=twist.count)

        return twist

    verdict = both(counter(True), counter(False), steps=(3, 3))
    assert verdict.verdict == "diverged"
    assert (verdict.pivot.step, verdict.pivot.suspect.text, verdict.pivot.origin) == (1, "step + 1", "structure")


def test_a_step_without_a_state_boundary_is_not_identical(both):
    def quiet(script):
        x = script.given((4, 8), 3)
        for step in range(3):
            x = script.op("aten.sin.default", [x], (4, 8), at="f(x)")
            if step:
                script.state(param__w=x)
            script.update()
        script.read(x)
        return script.close()

    verdict = compare(quiet(Script()), quiet(Script()))
    assert (verdict.verdict, slugs(verdict)) == ("inconclusive", ["state-missing", "state-missing"])
    assert "step 0" in verdict.reasons[0].text


def test_parameters_that_only_one_side_has(both):
    def named(*names):
        def build(script):
            x = script.given((4, 8), 3)
            for _ in range(2):
                x = script.op("aten.sin.default", [x], (4, 8), at="f(x)")
                script.state(**{f"param__{name}": script.given((3, at + 1), 50 + at) for at, name in enumerate(names)})
                script.update()
            script.read(x)
            return script.close()

        return build(Script())

    verdict = compare(named("a"), named("a", "b"))
    assert (verdict.verdict, slugs(verdict)) == ("inconclusive", ["state-unmatched"])
    assert "only in the suspect param:b" in verdict.reasons[0].text


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


def test_a_window_too_large_to_follow_is_not_called_harmless(both, monkeypatch):
    monkeypatch.setattr(matters, "MAX_READS", 0)

    def twist(content):
        def change(s: Script, t: T) -> None:
            kept = s.op("aten.sin.default", [t["x"]], (4, 8), content, at="keep(x)", line=30)
            for at in range(4):
                kept = s.op("aten.cos.default", [kept], (4, 8), content + 10 + at, at="cos(kept)", line=31)
            s.op("aten.gt.Scalar", [kept], (4, 8), 77, at="kept > 0", line=32)

        return in_step(1, "after mm", change)

    for window in (twist(500), twist(600)):
        assert window is not None
    verdict = both(twist(500), twist(600))
    assert verdict.verdict == "inconclusive"


def test_two_places_that_fit_equally_well_are_ambiguous(both):
    """Both read the same paired value, with the same operator, in the same stretch of code, and all results differ."""

    def twist(word, names):
        def change(s: Script, t: T) -> None:
            base = s.op("aten.sum.default", [t["h"]], (), at="h.sum()", line=29)
            for at, name in enumerate(names):
                made = s.op("aten.expand_copy.default", [base], (4, 8), word + at, at=name, args="size=[4,8]", trivial=True)
                s.read(made, at=f"print({name})")

        return in_step(1, "after mm", change)

    verdict = both(twist(700, ["a()", "b()"]), twist(800, ["c()", "d()"]))
    assert (verdict.verdict, slugs(verdict)) == ("inconclusive", ["ambiguous-pivot"])
    assert verdict.pivot is None
    assert "model.py" in verdict.reasons[0].text


def test_a_place_chosen_by_its_consumer_is_not_ambiguous(both):
    def twist(values, names):
        def change(s: Script, t: T) -> None:
            made = [s.op("aten.full.default", [], (8, 8), v, at=n, trivial=True) for v, n in zip(values, names, strict=True)]
            t["h"] = s.op("aten.mm.default", [t["h"], made[0]], (4, 8), at="h @ m", line=31)

        return in_step(1, "after mm", change)

    verdict = both(twist([1, 2], ["a()", "b()"]), twist([7, 8], ["c()", "d()"]))
    assert (verdict.verdict, verdict.pivot.suspect.text) == ("diverged", "c()")


def test_the_writer_of_a_memory_trace_takes_sources():
    MemoryWriter().source("x", "y")
