"""What a replay added to an answer explains its own part and nothing else: verdict, reasons and fields have to come out again."""

import copy

import pytest

from opguard_harness.compare.locate import REORDERED, locate
from opguard_harness.compare.narrow import narrow
from opguard_harness.compare.replay import Replay
from opguard_harness.errors import ReportRefused
from opguard_harness.workspace.reporting import rejudged as module
from opguard_harness.workspace.reporting.rejudged import rejudged
from tests.support.answers import answer, pivot

OTHER = {"slug": "steps-differ", "text": "One side ran longer.", "fix": "Run as many."}


class Replayer:
    """Gives one replay."""

    def __init__(self, found):
        self.found = found

    def look(self, step, end, first):
        return self.found


def sentinel(why, *more):
    """What two sentinel traces give."""
    compared = {"ranks": [0], "steps": [0, 1], "paired_share": {"reference": None, "suspect": None}}
    located = {"step": 0, "rank": 0, "kinds": ["param"], "why": why, "also_differ": {}}
    reasons = [{"slug": why, "text": "The state differs.", "fix": "Replay."}, *more]
    return answer("inconclusive", mode="sentinel", compared=compared, located=located, reasons=reasons)


def replay(verdict):
    return Replayer(Replay((0, 1), answer(verdict), "", 1.0))


def explained(*more):
    now = sentinel(REORDERED, *more)
    return now, locate(now, replay("identical"))


def unseen():
    now = sentinel("state-differs", OTHER)
    return now, locate(now, replay("identical"))


def narrowed():
    now = answer("diverged", mode="full", pivot=pivot(origin="operator", origin_alternatives=["mutated"]))
    return now, narrow(now, replay("identical"))


@pytest.mark.parametrize("case", [explained, lambda: explained(OTHER), unseen, narrowed])
def test_what_a_replay_adds_is_taken_and_what_else_is_altered_is_refused(case, monkeypatch):
    now, stored = case()
    monkeypatch.setattr(module, "judge", lambda *_: copy.deepcopy(now))
    assert stored != now
    assert rejudged("c", stored)["verdict"] == stored["verdict"]
    for verdict in {"identical", "diverged", "inconclusive"} - {stored["verdict"]}:
        with pytest.raises(ReportRefused, match="verdict is"):
            rejudged("c", {**stored, "verdict": verdict})
    with pytest.raises(ReportRefused, match="prefix"):
        rejudged("c", {**stored, "prefix": {**stored["prefix"], "pairs": stored["prefix"]["pairs"] + 1}})
    with pytest.raises(ReportRefused, match="compared"):
        rejudged("c", {**stored, "compared": {**stored["compared"], "steps": [0, 7]}})
    for reason in stored["reasons"]:
        if reason in now["reasons"]:
            with pytest.raises(ReportRefused, match=f"lacks the reason {reason['slug']}"):
                rejudged("c", {**stored, "reasons": [one for one in stored["reasons"] if one != reason]})
    with pytest.raises(ReportRefused, match="gives the reason torn"):
        rejudged("c", {**stored, "reasons": [*stored["reasons"], {**OTHER, "slug": "torn"}]})


def test_an_order_that_no_replay_of_it_explains_is_not_explained_by_its_word(monkeypatch):
    now, _ = unseen()
    monkeypatch.setattr(module, "judge", lambda *_: copy.deepcopy(now))
    word = {**now["compared"], "state_order": "another layout, as the replay of the first step shows"}
    with pytest.raises(ReportRefused, match="state_order"):
        rejudged("c", {**now, "compared": word})
