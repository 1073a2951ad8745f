"""The answer's object: exactly the documented keys, over one rank or many."""

import json

import pytest

from opguard_core.certify.answer import to_dict
from opguard_core.certify.compare import compare
from opguard_core.errors import ConfigError
from tests.support.memory import MemoryTrace, memory_run
from tests.support.script import Held, Script
from tests.unit.certify.conftest import train
from tests.unit.certify.test_origins import clone, in_step

PIVOT = {
    "rank", "step", "microbatch", "phase", "operator", "slot", "origin", "origin_alternatives", "stream", "thread", "stack", "reference",
    "suspect", "forward", "near", "seq",
}  # fmt: skip
PLACE = {"file", "line", "end_line", "column", "end_column", "function", "text", "statement"}


def test_the_answer_has_the_documented_keys(judge):
    answer = to_dict(judge(clone(), clone(Held(5))))
    assert set(answer) == {
        "schema", "verdict", "mode", "scope", "pivot", "isolated", "rank_firsts", "prefix", "compared", "coverage", "filters", "reasons",
        "candidates", "spread",
    }  # fmt: skip
    assert set(answer["pivot"]) == PIVOT
    assert set(answer["pivot"]["suspect"]) == PLACE
    assert set(answer["prefix"]) == {"pairs", "tensors", "bytes"}
    assert {"ranks", "steps", "paired_share"} <= set(answer["compared"])
    assert json.loads(json.dumps(answer)) == answer


def test_the_answer_of_equal_runs_has_no_pivot(judge):
    answer = to_dict(judge())
    assert (answer["schema"], answer["verdict"], answer["pivot"], answer["reasons"]) == (1, "identical", None, [])
    assert answer["compared"]["digest_bits"] == 64
    assert answer["compared"]["comparisons"] > 0


def test_a_reason_has_slug_text_and_fix(judge):
    (entry,) = to_dict(judge(steps=(2, 3)))["reasons"]
    assert set(entry) == {"slug", "text", "fix"}


def ranks(*twists, **facts):
    traces = []
    for rank, twist in enumerate(twists):
        script = Script(rank=rank, world_size=len(twists))
        script.clock = facts.get("clocks", [0] * len(twists))[rank]
        train(script, twist=twist)
        script.close()
        traces.append(MemoryTrace(script.writer, script.writer.manifest))
    return memory_run(traces)


def test_the_earliest_rank_is_found_by_step_then_by_collective_clock():
    late = in_step(1, "after mm", lambda s, t: t.update(h=s.op("aten.clone.default", [t["h"]], (4, 8), Held(5), at="late(h)")))
    early = in_step(0, "after mm", lambda s, t: t.update(h=s.op("aten.clone.default", [t["h"]], (4, 8), Held(5), at="early(h)")))

    def plain(step):
        return in_step(step, "after mm", lambda s, t: t.update(h=s.op("aten.clone.default", [t["h"]], (4, 8), Held(6), at="plain(h)")))

    verdict = compare(ranks(plain(1), plain(0)), ranks(late, early))
    assert (verdict.pivot.rank, verdict.pivot.suspect.text) == (1, "early(h)")
    assert [pivot.rank for pivot in verdict.rank_firsts] == [1, 0]
    clocked = compare(ranks(plain(0), plain(0), clocks=[9, 3]), ranks(early, early, clocks=[9, 3]))
    assert clocked.pivot.rank == 1


def test_ranks_pair_by_an_explicit_map():
    verdict = compare(ranks(None, clone()), ranks(clone(), None), rank_map={0: 1, 1: 0})
    assert verdict.verdict == "identical"
    assert verdict.compared["rank_map"] == [[1, 0], [0, 1]]
    with pytest.raises(ConfigError):
        compare(ranks(None), ranks(None), rank_map={0: 3})


def test_progress_counts_events_up_to_the_total(judge):
    seen = []
    judge(compare={"progress": lambda what, done, total: seen.append((what, done, total))})
    assert [what for what, _, _ in seen] == ["align"] * 3
    assert seen[-1][1] == seen[-1][2]
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)


def test_the_scope_says_what_kind_of_determinism_it_speaks_for():
    def run(tree):
        found = ranks(None)
        found.ranks[0].manifest.contract.update({"source.tree": {"sha256": tree}, "run.argv": ["python", "train.py"]})
        return found

    assert compare(run("a"), run("a")).scope["determinism"] == "run-to-run"
    assert compare(run("a"), run("b")).scope["determinism"] == "cross-stack"
    assert compare(run("a"), run("a")).scope["devices"] == ["cpu"]
