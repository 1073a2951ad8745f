"""Differences that reach nothing: isolated when they are gone, unresolved when they are alive at the end."""

from __future__ import annotations

from opguard_core.certify import harmless, matters
from tests.support.script import Script
from tests.unit.certify.conftest import slugs
from tests.unit.certify.test_origins import T, in_step


def test_a_difference_alive_at_the_end_is_unresolved(both):
    def twist(content):
        def change(s: Script, t: T) -> None:
            s.op("aten.sin.default", [t["x"]], (4, 8), content, at="keep(x)", line=30)

        return in_step(1, "after mm", change)

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


def test_a_window_too_large_to_follow_is_not_called_harmless(both, monkeypatch):
    monkeypatch.setattr(matters, "MAX_READS", 0)

    def twist(content):
        def change(s: Script, t: T) -> None:
            kept = s.op("aten.sin.default", [t["x"]], (4, 8), content, at="keep(x)", line=30)
            for at in range(4):
                kept = s.op("aten.cos.default", [kept], (4, 8), content + 10 + at, at="cos(kept)", line=31)
            s.op("aten.gt.Scalar", [kept], (4, 8), 77, at="kept > 0", line=32)

        return in_step(1, "after mm", change)

    verdict = both(twist(500), twist(600))
    assert verdict.verdict == "inconclusive"
