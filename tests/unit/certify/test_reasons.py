"""Reasons why a verdict is not stronger: what the traces lack or say of their runs; each named with its slug, and with a fix."""

from __future__ import annotations

import itertools
from string import Formatter

import pytest

from opguard_core.certify.compare import compare
from opguard_core.certify.reasons import _TEXTS, SLUGS, reason
from opguard_core.trace.problems import TornTail
from tests.support.memory import MemoryTrace, memory_run
from tests.support.script import Held, Script
from tests.unit.certify.conftest import slugs, traced, train
from tests.unit.certify.test_origins import clone, in_step, other


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
