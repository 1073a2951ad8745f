"""What filters would do to a stored comparison: its traces judged again, without them and with them. Nothing is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opguard_core.certify.filters import Filter
from opguard_core.ids import SIDES
from opguard_harness.compare.judging import judge
from opguard_harness.compare.launching import SideRun
from opguard_harness.report.progress import Silent


@dataclass(frozen=True)
class Preview:
    """Two judgements of one comparison.

    Attributes:
        before: Answer without the filters in question.
        after: Answer with them.
        ids: The filters in question.
    """

    before: dict[str, Any]
    after: dict[str, Any]
    ids: tuple[str, ...]

    @property
    def entries(self) -> list[dict[str, Any]]:
        """What each filter in question did, as in an answer."""
        return [entry for entry in self.after["filters"] if entry["id"] in self.ids]

    @property
    def refused(self) -> str:
        """Why a filter in question may not hide what it names; empty if all may."""
        refused = {entry["id"] for entry in self.entries if entry["refused"]}
        texts = [reason["text"] for reason in self.after["reasons"] if reason["slug"] == "filter-refused"]
        return next((text for text in texts for name in sorted(refused) if f"Filter {name} names" in text), "")

    @property
    def changes_verdict(self) -> bool:
        """Whether the answer's verdict or its place would be another."""
        return _gist(self.before) != _gist(self.after)

    def as_dict(self) -> dict[str, Any]:
        """Plain form."""
        hits = sum(entry["hits"] for entry in self.entries)
        return {
            "before": _brief(self.before),
            "after": _brief(self.after),
            "verdict_changes": self.changes_verdict,
            "pairs_hidden": self.after["compared"].get("filtered", {}).get("pairs", 0),
            "differences_hidden": hits,
            "refused": self.refused,
            "filters": self.entries,
        }


def preview(answer: dict[str, Any], filters: Sequence[Filter], *, beside: Sequence[Filter] = ()) -> Preview:
    """Judge the traces of a stored comparison without and with some filters.

    Args:
        answer: The stored answer.
        filters: The filters in question.
        beside: Filters that apply in both judgements.

    Raises:
        TraceFormatError: A trace is gone or cannot be read.

    Cost: two judgements of the stored traces; no program runs.
    """
    reference, suspect = (SideRun(side, Path(answer["trace"][side]), answer["exit"][side], 0.0) for side in SIDES)
    others = [rule for rule in beside if rule.id not in {own.id for own in filters}]
    before, after = (judge(reference, suspect, None, Silent(), chosen) for chosen in (others, [*others, *filters]))
    return Preview(before, after, tuple(rule.id for rule in filters))


def _gist(answer: dict[str, Any]) -> tuple[Any, ...]:
    pivot = answer["pivot"]
    return answer["verdict"], pivot and (pivot["rank"], pivot["seq"], pivot["slot"])


def _brief(answer: dict[str, Any]) -> dict[str, Any]:
    """Verdict, reasons and place of a judgement."""
    pivot = answer["pivot"]
    keys = ("rank", "step", "phase", "operator", "slot", "origin", "seq", *SIDES)
    return {
        "verdict": answer["verdict"],
        "reasons": [reason["slug"] for reason in answer["reasons"]],
        "pivot": None if pivot is None else {key: pivot[key] for key in keys},
    }
