"""Claim: of several runs that are given one folder at the same moment, one gets it and the others are told so; no trace or
result is mixed or lost."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from opguard_core.errors import ConfigError, FlushFailed
from opguard_core.launch import folder
from opguard_core.trace.reader import Run
from opguard_core.trace.writer import TraceWriter
from opguard_harness.compare.folders import Results
from opguard_harness.errors import OutRefused
from tests.support.traces import event, slot

RIVALS = 6


def at_once(act):
    """Call ``act(number)`` on several threads at the same moment; their results or errors."""
    barrier = threading.Barrier(RIVALS)

    def one(number):
        barrier.wait()
        try:
            return act(number)
        except (ConfigError, FlushFailed) as error:
            return error

    with ThreadPoolExecutor(RIVALS) as pool:
        return list(pool.map(one, range(RIVALS)))


@pytest.mark.parametrize("turn", range(20))
@pytest.mark.parametrize("there", [True, False], ids=["empty", "absent"])
def test_one_launcher_gets_the_folder(tmp_path, there, turn):
    out = tmp_path / "run"
    if there:
        out.mkdir()
    found = at_once(lambda _: folder.prepare(out))
    refused = [error for error in found if isinstance(error, ConfigError)]
    assert len(refused) == RIVALS - 1
    assert {error.as_dict()["slug"] for error in refused} == {"out-in-use"}


@pytest.mark.parametrize("turn", range(10))
def test_one_writer_gets_the_rank(tmp_path, turn):
    def write(number):
        writer = TraceWriter(tmp_path / "rank-00000")
        writer.emit(event(0, args=str(number)), [slot(0)])
        writer.close(ended="exit")
        return number

    found = at_once(write)
    (winner,) = [number for number in found if isinstance(number, int)]
    (window,) = Run.open(tmp_path).ranks[0].iter_windows()
    assert [window.event(0).args] == [str(winner)]


def test_of_two_comparisons_the_second_keeps_its_results_beside(tmp_path):
    out = tmp_path / "out"
    with Results(out) as first:
        with pytest.raises(OutRefused, match="taken by something else") as caught, Results(out) as second:
            (first.partial / "answer.json").write_text("first")
            (second.partial / "answer.json").write_text("second")
            first.finish()
            second.finish()
    assert (out / "answer.json").read_text() == "first"
    assert (tmp_path / "out.failed" / "answer.json").read_text() == "second"
    assert "out.failed" in str(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "out.failed"]
