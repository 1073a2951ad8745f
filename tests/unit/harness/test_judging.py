"""What the harness adds to a verdict: whether the window that was asked for was reached."""

import io

import pytest

from opguard_harness.compare.judging import judge
from opguard_harness.compare.launching import SideRun
from opguard_harness.errors import WindowNotReached
from opguard_harness.report.progress import Progress
from tests.support.synthetic import Corrupt, GptShape, Side, gpt, write_run

STEPS = 3


@pytest.fixture
def judged(tmp_path):
    """Judge two synthetic runs, the second with the first operator of a step corrupted."""

    def run(window, *, corrupt):
        program = gpt(GptShape(layers=1, steps=STEPS))
        at = program.find(corrupt, operator="aten.gelu.default")[0]
        write_run(tmp_path / "reference", program)
        write_run(tmp_path / "suspect", Side(program, [Corrupt(at)]))
        sides = [SideRun(name, tmp_path / name, 0, 0.0) for name in ("reference", "suspect")]
        return judge(*sides, window, Progress(io.StringIO()))

    return run


def test_a_difference_in_the_state_before_the_window_is_a_verdict(judged):
    answer = judged((1, STEPS), corrupt=0)
    assert answer["verdict"] == "diverged"
    assert answer["compared"]["steps"] == [0]  # the comparison ends in front of the window


def test_a_window_that_no_side_reached_is_an_error_that_names_what_is_there(judged):
    with pytest.raises(WindowNotReached, match=r"the reference side recorded none of these steps \(it recorded 0 to 3\)"):
        judged((STEPS + 1, STEPS + 2), corrupt=0)


def test_a_window_before_everything_recorded_is_an_error(judged, monkeypatch):
    monkeypatch.setattr("opguard_core.trace.reader.RankTrace.window_span", lambda trace: (7, 9))
    with pytest.raises(WindowNotReached, match="7 to 9"):
        judged((4, 6), corrupt=0)
