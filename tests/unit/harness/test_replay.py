"""What a replay in private copies makes of an answer: sentinel located, narrow decided, or not reproduced."""

import pytest

from opguard_core.errors import Interrupted, TimedOut
from opguard_harness.answer.schema import compare_schema
from opguard_harness.answer.validate import faults
from opguard_harness.compare.launching import SideRun
from opguard_harness.compare.locate import locate
from opguard_harness.compare.narrow import narrow, offer
from opguard_harness.compare.replay import Replayer, keep_pristine
from opguard_harness.compare.request import CaptureRequest
from opguard_harness.compare.sides import ProgramSide, TraceSide
from opguard_harness.report.short import short_answer
from tests.support.answers import answer, pivot, place

STEPS = list(range(40))


def sentinel(step=30, why="state-differs"):
    """What two sentinel traces say."""
    located = {"step": step, "rank": 0, "kinds": ["param", "optim"], "why": why, "also_differ": {"grad": step}}
    compared = {
        "ranks": [0],
        "steps": STEPS[: step + 1],
        "paired_share": None,
        "boundaries": "state",
        "state_kinds": [],
        "state_not_compared": [],
    }
    reasons = [{"slug": why, "text": "The state differs.", "fix": "Replay."}]
    return answer("inconclusive", mode="sentinel", located=located, compared=compared, reasons=reasons)


def open_answer(**changes):
    """A verdict of mode full that leaves something open."""
    found = pivot(step=30, origin="operator", origin_alternatives=["mutated"], **changes)
    return answer("diverged", mode="full", pivot=found, compared={"ranks": [0], "steps": STEPS, "paired_share": 1.0})


def replayed(verdict="diverged", **changes):
    return answer(
        verdict,
        trace={"reference": "/replay/reference/trace", "suspect": "/replay/suspect/trace"},
        exit={"reference": 143, "suspect": 143},
        **changes,
    )


@pytest.fixture
def replayer(tmp_path):
    """A replayer whose replays give the listed answers (or errors), and what it was asked."""
    sides = []
    for name in ("reference", "suspect"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.py").write_text("first\n")
        sides.append(ProgramSide(name, tmp_path / name, ("python", "train.py"), {}, tmp_path / name))
    (tmp_path / "scratch").mkdir()

    def make(*outcomes):
        kept = keep_pristine(tuple(sides), tmp_path / "scratch")
        for side in sides:
            (side.folder / "train.py").write_text("changed by the first run\n")
        asked, waiting = [], list(outcomes)

        def run(copies, capture, name):
            for copy in copies:
                assert (copy.folder / "train.py").read_text() == "first\n", "a replay runs what was there before anything ran"
                (copy.folder / "train.py").write_text("changed by a replay\n")
            asked.append((capture.mode, capture.steps, name))
            return tuple(SideRun(copy.name, copy.folder, 0, 1.5) for copy in copies)

        def judge(runs, steps):
            outcome = waiting.pop(0)
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        made = Replayer(kept, CaptureRequest(mode="sentinel", timeout_s=9.0), run, judge, lambda text: None)
        return made, asked

    return make


def checked(value):
    assert faults(value, compare_schema()) == []
    return value


def test_the_step_that_a_sentinel_found_is_replayed_and_the_replay_answers(replayer):
    tool, asked = replayer(replayed())
    found = checked(locate(sentinel(), tool))
    assert asked == [("verify", (29, 31), "replay-1")]
    assert found["verdict"] == "diverged"
    assert found["trace"]["reference"] == "/replay/reference/trace"
    assert found["exit"] == {"reference": 0, "suspect": 0}, "how the programs end is told by the runs that ended by themselves"
    assert found["located"]["replay"]["trace"] == sentinel()["trace"]
    assert "found by the state after step 30 and a replay of steps 29:31" in short_answer(found)[0]


def test_the_first_step_has_none_before_it(replayer):
    tool, asked = replayer(replayed())
    locate(sentinel(step=0), tool)
    assert [steps for _, steps, _ in asked] == [(0, 1)]


def test_a_difference_that_was_there_when_the_window_began_is_followed_further_back_once(replayer):
    early = pivot(origin="unobserved-producer")
    tool, asked = replayer(replayed(pivot=early), replayed(pivot=pivot(origin="operator")))
    found = checked(locate(sentinel(), tool))
    assert [steps for _, steps, _ in asked] == [(29, 31), (14, 31)]
    assert found["pivot"]["origin"] == "operator"
    assert found["located"]["replay"]["steps"] == [14, 31]


@pytest.mark.parametrize(("origin", "before"), [("unobserved-producer", (29, 31)), ("operator", None)])
def test_a_second_replay_says_which_one_was_before_it(replayer, origin, before):
    tool, _ = replayer(replayed(pivot=pivot(origin=origin)), replayed())
    assert tool.look(30, 31, 0).before == before


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        (replayed("identical"), "it was identical"),
        (replayed("identical", coverage={"suspect": {"0": {"compiled_regions_run_eagerly": 1}}}), "compiled regions run eagerly"),
        (TimedOut("The reference side ran longer than 9 s."), "ran longer than 9 s"),
    ],
)
def test_a_replay_that_shows_nothing_is_never_identical(replayer, outcome, said):
    tool, _ = replayer(outcome)
    found = checked(locate(sentinel(), tool))
    assert found["verdict"] == "inconclusive"
    assert found["pivot"] is None
    assert [reason["slug"] for reason in found["reasons"]] == ["not-reproduced"]
    assert said in found["reasons"][0]["text"]
    assert "step 30" in found["reasons"][0]["text"]


def test_an_inconclusive_replay_answers_with_its_own_reasons(replayer):
    tool, _ = replayer(replayed("inconclusive"))
    found = checked(locate(sentinel(), tool))
    assert [reason["slug"] for reason in found["reasons"]] == ["torn"]


def test_an_order_that_the_first_step_explains_is_identical_and_says_how(replayer):
    tool, asked = replayer(replayed("identical"))
    found = checked(locate(sentinel(step=0, why="state-reordered"), tool))
    assert (found["verdict"], asked[0][1]) == ("identical", (0, 1))
    assert "another layout" in found["compared"]["state_order"]
    assert "a bug that both sides have" in found["scope"]["limit"]


def test_traces_cannot_be_replayed_and_the_answer_stays(replayer, tmp_path):
    assert keep_pristine((TraceSide("reference", tmp_path), TraceSide("suspect", tmp_path)), tmp_path) is None
    assert locate(sentinel(), None) == sentinel()
    found = checked(narrow(open_answer(), None))
    assert found["verdict"] == "diverged"
    assert "nothing can be replayed" in found["narrow"]["text"]


def test_an_open_answer_offers_the_replay_in_its_text_and_as_data():
    found = checked(offer(open_answer()))
    assert found["next"][0]["options"] == ["--narrow"]
    assert any(line.startswith("next        --narrow: mode full did not read every input") for line in short_answer(found))
    closed = answer("diverged", mode="full")
    assert offer(closed) == closed
    decided = answer("diverged", mode="verify", pivot=pivot(origin_alternatives=["mutated"]))
    assert offer(decided) == decided


def test_narrow_decides_at_the_same_place(replayer):
    tool, asked = replayer(replayed(pivot=pivot(step=30, origin="mutated")))
    found = checked(narrow(open_answer(), tool))
    assert asked[0][:2] == ("verify", (29, 32))
    assert (found["pivot"]["origin"], found["narrow"]["same_place"]) == ("mutated", True)
    assert found["narrow"]["first"]["origin"] == "operator"
    assert "the replay says mutated, at the same place" in short_answer(found)[0]


def test_narrow_follows_the_replay_to_another_place_and_says_so(replayer):
    tool, _ = replayer(replayed(pivot=pivot(step=30, origin="argument", suspect=place(line=77, text="other"))))
    found = checked(narrow(open_answer(), tool))
    assert (found["pivot"]["suspect"]["line"], found["narrow"]["same_place"]) == (77, False)
    assert "another place, which this answer follows" in found["narrow"]["text"]


def test_narrow_keeps_what_was_recorded_when_it_does_not_come_again(replayer):
    tool, _ = replayer(replayed("identical"))
    found = checked(narrow(open_answer(), tool))
    assert (found["verdict"], found["pivot"]["origin"]) == ("diverged", "operator")
    assert found["reasons"][-1]["slug"] == "not-reproduced"
    assert found["narrow"]["same_place"] is None


def test_narrow_replays_nothing_where_nothing_is_open(replayer):
    tool, asked = replayer()
    found = checked(narrow(answer("identical", mode="full"), tool))
    assert not asked
    assert "leaves nothing open" in found["narrow"]["text"]


def test_an_interrupt_in_a_replay_ends_the_comparison(replayer):
    tool, _ = replayer(Interrupted("Interrupted."))
    with pytest.raises(Interrupted):
        locate(sentinel(), tool)


def test_copies_of_a_replay_are_removed(replayer, tmp_path):
    tool, _ = replayer(replayed())
    locate(sentinel(), tool)
    assert sorted(path.name for path in (tmp_path / "scratch").iterdir()) == ["pristine-reference", "pristine-suspect"]
