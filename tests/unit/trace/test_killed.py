"""Claims: a writing process killed with -9 leaves a readable prefix that holds everything flushed before, and nothing else
than what it emitted."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from opguard_core.trace.reader import Run
from tests.support.synthetic import GptShape, gpt, write_run
from tests.support.traces import is_prefix, read_rank, rows_of

SHAPE = "GptShape(layers=1, width=8, tokens=4, vocabulary=16, steps=12)"

WRITE_AND_DIE = f"""
import os, signal, sys
from opguard_core.trace.writer import TraceWriter
from tests.support.synthetic import GptShape, emit_side, gpt

folder, flush_at, die_at = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])

class Dying(TraceWriter):
    def emit(self, event, slots):
        super().emit(event, slots)
        if event.seq == flush_at:
            self.flush()
        if event.seq == die_at:
            os.kill(os.getpid(), signal.SIGKILL)

emit_side(gpt({SHAPE}), Dying(folder, segment_events=64))
"""

LENGTH = len(gpt(eval(SHAPE)))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return read_rank(write_run(tmp_path_factory.mktemp("whole"), gpt(eval(SHAPE))))


@pytest.mark.parametrize(
    ("flush_at", "die_at"),
    [(-1, 0), (0, 1), (-1, 200), (150, 200), (499, 500), (600, 1000), (LENGTH - 2, LENGTH - 1)],
)
def test_killed_at_an_event(tmp_path, whole, flush_at, die_at):
    done = subprocess.run(
        [sys.executable, "-c", WRITE_AND_DIE, str(tmp_path / "rank-00000"), str(flush_at), str(die_at)], capture_output=True, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    trace = Run.open(tmp_path).ranks[0]
    found = rows_of(trace)
    assert is_prefix(found, whole)
    assert flush_at + 1 <= len(found.events) <= die_at + 1
    assert trace.torn is not None
    assert (trace.torn.slug, trace.torn.next_seq) == ("not-finished", len(found.events))
    assert "probably killed" in trace.torn.text
    assert trace.manifest.ended == "unknown"


def test_shape_is_imported():
    assert GptShape(layers=1, width=8, tokens=4, vocabulary=16, steps=12) == eval(SHAPE)
