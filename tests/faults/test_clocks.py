"""Claim: no clock decides what a trace holds or what a comparison says; clocks that stand still, jump or run backwards cost
at most time."""

from __future__ import annotations

import random

import pytest

from opguard_core.certify.answer import to_dict
from opguard_core.certify.compare import compare
from opguard_core.trace import flush
from opguard_core.trace.reader import Run
from tests.support.memory import MemoryTrace, MemoryWriter, memory_run
from tests.support.synthetic import Corrupt, GptShape, Side, emit_side, gpt, write_run
from tests.support.traces import read_rank

SHAPE = GptShape(layers=1, width=8, tokens=4, vocabulary=16, steps=4)
RNG = random.Random(0)
CLOCKS = {
    "backwards": lambda calls: 1e6 - 10.0 * calls,
    "still": lambda calls: 7.0,
    "jumping": lambda calls: RNG.uniform(-1e9, 1e9),
    "leaping": lambda calls: 1e5 * calls,
}


class Clock:
    """In place of module `time` for the writing thread."""

    def __init__(self, reading):
        self._reading, self._calls = reading, 0

    def monotonic(self):
        self._calls += 1
        return self._reading(self._calls)


@pytest.mark.parametrize("reading", CLOCKS.values(), ids=CLOCKS)
def test_the_writer_under_a_broken_clock(tmp_path, monkeypatch, reading):
    expected = read_rank(write_run(tmp_path / "right", gpt(SHAPE)))
    monkeypatch.setattr(flush, "time", Clock(reading))
    run = write_run(tmp_path / "broken", gpt(SHAPE), segment_events=100)
    trace = Run.open(run).ranks[0]
    assert (trace.torn, trace.dropped) == (None, ())
    found = read_rank(run)
    assert (found.events, found.slots) == (expected.events, expected.slots)


def timed(side, times):
    """A side whose events carry other host times."""
    writer = MemoryWriter(mode="verify")
    emit_side(side, writer, mode="verify")
    writer.rows["events"] = [row._replace(t_host_ns=times(at)) for at, row in enumerate(writer.rows["events"])]
    return memory_run([MemoryTrace(writer, writer.close(ended="exit"))])


@pytest.mark.parametrize(
    "times", [lambda at: -at, lambda at: 0, lambda at: RNG.randint(-(2**63), 2**63 - 1)], ids=["backwards", "still", "random"]
)
def test_the_verdict_does_not_depend_on_host_times(times):
    program = gpt(SHAPE)
    suspect = Side(program, [Corrupt(program.find(2, operator="aten.gelu.default")[0])])
    right, broken = (
        to_dict(compare(timed(program, reading), timed(suspect, reading))) for reading in (lambda at: 1000 * at, times)
    )  # fmt: skip
    assert right["verdict"] == "diverged"
    assert broken == right
