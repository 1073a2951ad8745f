"""A stored answer computed again from its traces: what a report says is what comes out now, and has to be what was stored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields as fields_of
from pathlib import Path
from typing import Any

from opguard_core.certify.filters import Filter, parse_filters
from opguard_core.errors import OpGuardError
from opguard_core.ids import SIDES
from opguard_harness.access.untrusted import one_line
from opguard_harness.answer.plain import plain
from opguard_harness.compare.judging import judge
from opguard_harness.compare.launching import SideRun
from opguard_harness.compare.locate import REORDERED, explained
from opguard_harness.errors import ReportRefused
from opguard_harness.interface.declaration import Next
from opguard_harness.report.progress import Silent
from opguard_harness.workspace.refusing import refused

COMPUTED = (
    "mode",
    "scope",
    "pivot",
    "isolated",
    "rank_firsts",
    "candidates",
    "prefix",
    "compared",
    "coverage",
    "contract",
    "filters",
    "spread",
    "determinism",
    "device_work",
    "semantic",
    "digests",
)
"""Fields of an answer that follow from its traces alone."""

_BY_REPLAY = ("located", "narrow")
_TOLD = "not-reproduced"
_VALUE_CHARS = 60


def rejudged(comparison: str, answer: dict[str, Any], fields: Sequence[str] = COMPUTED) -> dict[str, Any]:
    """Judge the traces of a comparison again and hold the stored answer against that.

    Args:
        comparison: Its id or path, for messages.
        answer: Its stored answer; its traces are there.
        fields: Fields that have to agree, beside the verdict; all that follow from the traces by default.

    Returns:
        The answer as computed now, with what no trace can tell (where the traces lie, what a replay added) from the stored one.

    Raises:
        ReportRefused: They differ, in a field that the message names.

    Cost: one judgement of the traces, as when they were compared.
    """
    sides = [SideRun(side, Path(answer["trace"][side]), answer["exit"][side], 0.0) for side in SIDES]
    try:
        now = plain(judge(sides[0], sides[1], None, Silent(), filters_of(answer)))
    except OpGuardError as error:
        raise refused(comparison, f"its traces cannot be judged again: {error.message}") from error
    stored = plain(answer)
    located = stored.get("located") or {}
    if stored.get("compared", {}).get("state_order") and located.get("why") == REORDERED:  # a replay of the first step explained it
        now = plain(explained(now, located))
    fields = [*fields, "verdict"]
    for name in fields:
        if name not in stored and name in now:
            raise _apart(comparison, answer, f"its answer has no {name}")
        for path, then, found in differences(stored.get(name), now.get(name), name):
            raise _apart(comparison, answer, f"{path} is {_value(then)} in its answer, and its traces give {_value(found)}")
    _check_reasons(comparison, stored, now)
    return {**stored, **{name: now[name] for name in fields if name in now}}


def filters_of(answer: Mapping[str, Any]) -> list[Filter]:
    """The filters that an answer says were in force.

    Raises:
        FilterInvalid: One is none.
    """
    keys = [item.name for item in fields_of(Filter)]
    return list(parse_filters({key: rule[key] for key in keys if rule.get(key)} for rule in answer["filters"]))


def differences(stored: Any, now: Any, at: str) -> Iterator[tuple[str, Any, Any]]:
    """Every place at which two plain values differ, with both values.

    Args:
        stored: One value.
        now: The other one.
        at: Path of both.
    """
    if isinstance(stored, dict) and isinstance(now, dict):
        for key in sorted(stored.keys() | now.keys()):
            yield from differences(stored.get(key), now.get(key), f"{at}.{key}")
    elif isinstance(stored, list) and isinstance(now, list) and len(stored) == len(now):
        for index, (one, other) in enumerate(zip(stored, now, strict=True)):
            yield from differences(one, other, f"{at}[{index}]")
    elif type(stored) is not type(now) or stored != now:
        yield at, stored, now


def _check_reasons(comparison: str, stored: dict[str, Any], now: dict[str, Any]) -> None:
    """A stored answer gives all reasons that there are now, and only those; a replay that shows nothing adds that, for what led to it."""
    by_replay = any(key in stored for key in _BY_REPLAY)
    told = by_replay and any(reason["slug"] == _TOLD for reason in stored["reasons"])
    for reason in stored["reasons"]:
        if reason not in now["reasons"] and not (told and reason["slug"] == _TOLD):
            raise refused(comparison, f"its answer gives the reason {one_line(reason['slug'], _VALUE_CHARS)}, and its traces do not")
    led = (stored.get("located") or {}).get("why") if told else None
    missing = [reason["slug"] for reason in now["reasons"] if reason not in stored["reasons"] and reason["slug"] != led]
    if missing:
        raise refused(comparison, f"its answer lacks the reason {missing[0]}")


def _apart(comparison: str, answer: dict[str, Any], why: str) -> ReportRefused:
    """The refusal of an answer that was altered, or that another release made: its traces can be judged anew."""
    hint = "`align` judges the two stored traces again; report the comparison that it makes."
    call = Next("align", {side: answer["trace"][side] for side in SIDES}, "judge the two stored traces again")
    return refused(comparison, why, hint, call)


def _value(value: Any) -> str:
    return one_line(repr(value), _VALUE_CHARS)
