# ruff: noqa: E402  (torch may be missing)
"""Whatever fails in our own code, the program goes on as if we were not there, and the failure is a counted gap."""

import _thread
import threading

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from opguard_core.engines.collectives import Collectives
from opguard_core.engines.dispatch import DispatchEngine
from opguard_core.engines.operators import OperatorPlan
from opguard_core.engines.rank import RankContext
from opguard_core.engines.threads import Threads
from tests.support.capturing import capturing


def fail(*args, **kwargs):
    raise LookupError("ours")


def internal(seen):
    return seen.coverage["gaps"]["internal-error"]


def test_an_operator_whose_schema_is_beyond_us_runs_as_it_is(monkeypatch):
    with capturing() as seen:
        x = torch.ones(3)
        monkeypatch.setattr(OperatorPlan, "__init__", fail)
        for _ in range(2):
            y = torch.erfinv(x * 0)
        monkeypatch.undo()
        y + 1
    assert y.tolist() == [0.0, 0.0, 0.0]
    assert "erfinv" not in seen.operators()
    assert seen.of("add").args.startswith("other=1")
    assert any("aten::erfinv" in example for example in internal(seen)["examples"])


def test_a_failure_while_an_event_is_emitted_is_a_gap_and_holds_nothing_back(monkeypatch):
    with capturing() as seen:
        x = torch.ones(3)
        monkeypatch.setattr(DispatchEngine, "_emit", fail)
        y = x * 2
        monkeypatch.undo()
        y + 1
    assert [(gap.operator, gap.args) for gap in seen.gaps] == [("aten.mul.Tensor", "event of aten.mul.Tensor: LookupError: ours")]
    assert seen.operators()[-1] == "add.Tensor"
    assert internal(seen)["first_seq"] == seen.gaps[0].seq


def test_a_collective_that_cannot_be_deferred_is_a_gap(monkeypatch):
    with capturing() as seen:
        x = torch.ones(3)
        monkeypatch.setattr(Collectives, "defer", fail)
        monkeypatch.setattr(DispatchEngine, "_results", lambda *args: [object()])
        y = x * 2
        monkeypatch.undo()
        y + 1
    assert [gap.operator for gap in seen.gaps] == ["aten.mul.Tensor"]
    assert seen.operators()[-1] == "add.Tensor"


def test_a_failing_look_at_lifetimes_is_a_gap(monkeypatch):
    monkeypatch.setattr("opguard_core.engines.dispatch.POLL_EVENTS", 1)
    with capturing() as seen:
        x = torch.ones(3)
        monkeypatch.setattr(RankContext, "poll", fail)
        x * 2
        monkeypatch.undo()
    assert internal(seen)["examples"][0] == "lifetimes: LookupError: ours"
    assert seen.operators()[-1] == "mul.Tensor"


def test_a_thread_we_cannot_follow_still_runs(monkeypatch):
    done = [threading.Event(), threading.Event()]
    with capturing() as seen:
        monkeypatch.setattr(Threads, "observe", fail)
        threading.Thread(target=done[0].set).start()
        _thread.start_new_thread(done[1].set, ())
        assert all(event.wait(60) for event in done)
        monkeypatch.undo()
    assert internal(seen)["examples"] == ["start of a thread: LookupError: ours"]


def test_a_read_we_cannot_place_still_reads(monkeypatch):
    with capturing() as seen:
        x = torch.ones(2)
        monkeypatch.setattr("opguard_core.engines.reads.event_here", fail)
        values = x.tolist()
        monkeypatch.undo()
    assert values == [1.0, 1.0]
    assert [gap.operator for gap in seen.gaps] == ["python.tolist"]
