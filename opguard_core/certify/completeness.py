"""What is missing from the traces or lies outside what was compared, as reasons."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from opguard_core.align.ranks import RankPairs
from opguard_core.certify.devicework.coverage import rank_work, times_of
from opguard_core.certify.devicework.leads import device_work
from opguard_core.certify.devicework.unattributed import Span, named, touching
from opguard_core.certify.findings import RankFindings
from opguard_core.certify.observed import observed
from opguard_core.certify.reasons import reason
from opguard_core.certify.verdict import Reason
from opguard_core.ids import SENTINEL, SIDES, Origin
from opguard_core.trace.manifest import RankManifest
from opguard_core.trace.reader import RankTrace, Run

LOW_SHARE = 0.5
"""Least share of a window's non-trivial results that the other side must have too; real refactorings keep 85 % and more."""

MAX_WORLD = 1 << 20
MAX_NAMED_RANKS = 16

_KNOWN = "let what launches it run inside an operator (`torch.library.custom_op`), or leave it out on both sides."
_WITHIN = ("in what was compared", f"See `device_work` for where it runs; {_KNOWN}")
_WRITTEN = (
    "after what the first difference read was written, and before it was read",
    f"Compare with `--mode verify`, which reads every input again; where that says the same, {_KNOWN}",
)

ENOUGH_RESULTS = 8
"""Windows with fewer non-trivial results say nothing about coverage."""


@dataclass
class Completeness:
    """Checks whether the traces hold enough for a verdict.

    Attributes:
        reference: Reference run.
        suspect: Suspect run.
        ranks: Rank pairs.
        findings: Findings of each pair, in order.
        conflicts: Contract differences that change arithmetic.
    """

    reference: Run
    suspect: Run
    ranks: RankPairs
    findings: list[RankFindings]
    conflicts: tuple[str, ...]

    def _traces(self) -> Iterator[tuple[str, int, RankTrace, RankFindings, int]]:
        for (left, right), found in zip(self.ranks.pairs, self.findings, strict=True):
            yield SIDES[0], left, self.reference.ranks[left], found, 0
            yield SIDES[1], right, self.suspect.ranks[right], found, 1

    def before_difference(self) -> list[Reason]:
        """Reasons that make even a found difference doubtful: an earlier one may be hidden."""
        reasons = [*self._ranks(), *self._plans()]
        for side, rank, trace, found, at in self._traces():
            hidden = _hidden_work(trace.manifest, before=found.last_seq[at])
            if found.pivot and hidden:
                reasons.append(reason("unobserved-work", side=side, rank=rank, detail=hidden))
            if found.pivot:
                spans = [(one.first, one.last) for one in found.exposed if one.side == at]
                reasons += _loose_work(side, rank, trace, spans, _WRITTEN)
            if found.dropped[at]:
                reasons.append(reason("dropped-records", side=side, rank=rank, count=found.dropped[at]))
            if found.gaps[at]:
                reasons.append(reason("gap", side=side, rank=rank, count=found.gaps[at], detail="see the manifest"))
        return reasons

    def unexplained(self, origins: set[str]) -> list[Reason]:
        """A conflict of contracts explains an operator that gives other results for equal inputs, and nothing else.

        Equal bits are equal whatever the settings, and a difference in structure, arguments or data is not made by a kernel.
        """
        if self.conflicts and str(Origin.OPERATOR) in origins:
            return [reason("contract-conflict", detail=", ".join(self.conflicts[:8]))]
        return []

    def _ranks(self) -> list[Reason]:
        reasons = []
        for side, run in zip(SIDES, (self.reference, self.suspect), strict=True):
            world = max((trace.manifest.world_size for trace in run.ranks.values()), default=0)
            missing = sorted({*run.missing_ranks, *range(min(world, MAX_WORLD))} - run.ranks.keys())
            reasons += [reason("rank-missing", side=side, rank=rank) for rank in missing[:MAX_NAMED_RANKS]]
        if self.ranks.reference_only or self.ranks.suspect_only:
            reasons.append(
                reason("ranks-differ", reference=list(self.ranks.reference_only) or "none", suspect=list(self.ranks.suspect_only) or "none")
            )
        return reasons

    def _plans(self) -> list[Reason]:
        """Mode, plan, world size and the definition of the fingerprint must agree where both sides state them."""
        reasons = []
        for left, right in self.ranks.pairs:
            facts = [_plan(self.reference, left), _plan(self.suspect, right)]
            different = sorted(key for key in facts[0] if facts[0][key] != facts[1][key] and facts[0][key] and facts[1][key])
            if different:
                detail = ", ".join(
                    f"{key} {_shown(self.reference, left, key, facts[0][key])} and {_shown(self.suspect, right, key, facts[1][key])}"
                    for key in different
                )
                reasons.append(reason("plan-mismatch", detail=detail))
                break
        return reasons

    def starts(self) -> list[Reason]:
        """A resumed run that does not say at which step it began is counted from 0, and compared with the wrong steps."""
        for left, right in self.ranks.pairs:
            begun = [run.ranks[rank].manifest.extra.get("start") for run, rank in ((self.reference, left), (self.suspect, right))]
            if None not in begun and begun.count("unknown") == 1:
                return [reason("start-unknown", side=SIDES[begun.index("unknown")])]
        return []

    def whole(self) -> list[Reason]:
        """Reasons that forbid `identical`: something was not there to be compared."""
        reasons = []
        for side, rank, trace, found, at in self._traces():
            if trace.torn is not None:
                reasons.append(reason("torn-trace", side=side, rank=rank, detail=trace.torn.text))
            put = trace.manifest.contract.get("transplant")
            if put:
                reasons.append(reason("transplanted", side=side, rank=rank, count=len(put) if isinstance(put, list) else 1))
            hidden = _hidden_work(trace.manifest)
            if hidden:
                reasons.append(reason("unobserved-work", side=side, rank=rank, detail=hidden))
            reasons += _loose_work(side, rank, trace, [(0, found.last_seq[at])], _WITHIN)
            missing = [window for window in found.completed if window in found.state_missing[at]]
            if missing:
                reasons.append(reason("state-missing", side=side, step=missing[0]))
        for found in self.findings:
            reasons += _lengths(found)
            for window, left, right in [entry for entry in found.state_unmatched if entry[0] in found.completed][:1]:
                reasons.append(reason("state-unmatched", step=window, reference=_few(left), suspect=_few(right)))
            if not found.windows and any(found.one_sided):
                reasons.append(reason("steps-not-overlapping", reference=_few(found.one_sided[0]), suspect=_few(found.one_sided[1])))
            if not found.prefix.pairs:
                reasons.append(reason("nothing-compared"))
        reasons += self._endings()
        return reasons + self._processes() + self.coverage()

    def _processes(self) -> list[Reason]:
        """Processes of the program that took part and were not captured, as the launcher noted them."""
        return [
            reason("uncaptured-process", side=side, detail=gap.get("text"), hint=gap.get("fix"))
            for side, run in zip(SIDES, (self.reference, self.suspect), strict=True)
            for gap in _noted(run)
        ]

    def _endings(self) -> list[Reason]:
        """A side ended by an error, even if the other did as well: what it would have done is not known to be equal."""
        reasons = []
        for (left, right), found in zip(self.ranks.pairs, self.findings, strict=True):
            ends = [self.reference.ranks[left].manifest.ended, self.suspect.ranks[right].manifest.ended]
            for side, end in zip(SIDES, ends, strict=True):
                if end in ("exception", "signal"):
                    step = found.windows[-1] if found.windows else 0
                    reasons.append(reason("ended-early", side=side, detail=f"an {end}" if end == "exception" else f"a {end}", step=step))
        return reasons

    def coverage(self) -> list[Reason]:
        """The first window in which too little found a counterpart."""
        for found in self.findings:
            for share in found.shares:
                parts = [
                    (accounted / telling if telling else 1.0, side)
                    for accounted, telling, side in zip(share.accounted, share.telling, SIDES, strict=True)
                ]
                # After the last common update one side may do more than the other (an evaluation): there, what one side
                # did must have its counterpart. Up to it, both sides must be covered.
                low, side = min(parts) if share.window in found.completed else max(parts)
                if max(share.telling) >= ENOUGH_RESULTS and low < LOW_SHARE:
                    return [reason("low-coverage", step=share.window, share=low, side=side)]
        return []

    def facts(self) -> dict[str, Any]:
        """The answer's ``coverage``: per side and rank, what could not be observed, and who observed at which level and why."""
        told: dict[str, dict[str, Any]] = {side: {} for side in SIDES}
        for side, rank, trace, _, _ in self._traces():
            said = observed(trace.manifest)
            told[side][str(rank)] = {**trace.manifest.coverage, **({"observed": said} if said else {})}
        return told

    def device_work(self) -> dict[str, Any] | None:
        """The answer's ``device_work``; None where no rank had a device to watch."""
        times = {
            side: times_of(run.manifest.extra.get("kernel_times")) for side, run in zip(SIDES, (self.reference, self.suspect), strict=True)
        }
        left, right = (
            {rank: rank_work(trace, times[side]) for name, rank, trace, _, _ in self._traces() if name == side} for side in SIDES
        )
        return device_work((left, right), self.ranks.pairs)


def _loose_work(side: str, rank: int, trace: RankTrace, spans: list[Span], where: tuple[str, str]) -> list[Reason]:
    """Device work without a boundary that may have touched observed tensors; a sentinel has no boundaries and reads all state anew."""
    found = touching(trace, spans) if trace.manifest.mode != SENTINEL else None
    if not found:
        return []
    text, fix = where
    return [reason("unattributed-work", side=side, rank=rank, count=found.total(), where=text, detail=named(found), fix=fix)]


def _noted(run: Run) -> list[dict[str, Any]]:
    noted = run.manifest.extra.get("gaps")
    return [gap for gap in noted if isinstance(gap, dict)] if isinstance(noted, list) else []


def _plan(run: Run, rank: int) -> dict[str, Any]:
    """What a rank was recorded under; one that was killed says less, and its launcher says the rest."""
    manifest, launched = run.ranks[rank].manifest, run.manifest.extra
    return {
        "mode": manifest.mode,
        "plan": manifest.extra.get("plan_hash") or launched.get("plan_hash") or "",
        "world size": manifest.world_size,
        "fingerprint definition": manifest.extra.get("fingerprint_definition"),
    }


def _shown(run: Run, rank: int, fact: str, value: object) -> str:
    """A fact of a run in a sentence; without a plan its hash is that of what the command line asked for, and that is said instead."""
    if fact != "plan":
        return repr(value)
    if run.manifest.extra.get("planned", True) is not False:
        return str(value)[:12]
    calls = run.ranks[rank].manifest.engines.get("callsites")
    patterns = calls.get("patterns") if isinstance(calls, dict) else None
    asked = " ".join(f"--callsites {pattern}" for pattern in patterns) if isinstance(patterns, list) else ""
    return f"none ({asked})" if asked else "none"


def _hidden_work(manifest: RankManifest, before: int | None = None) -> str:
    """Gaps of a rank's coverage that touched observed tensors; those known to begin at or before an event, if one is given."""
    gaps = manifest.coverage.get("gaps", {})
    if not isinstance(gaps, dict):
        return ""
    bad = []
    for name, gap in gaps.items():
        if isinstance(gap, dict) and gap.get("touches_state"):
            first = gap.get("first_seq")
            if before is None or (isinstance(first, int) and first <= before):
                bad.append(f"{name} ({gap.get('count')})")
    return ", ".join(sorted(bad)[:8])


def _lengths(found: RankFindings) -> list[Reason]:
    extra = found.one_sided
    if not found.windows:
        return []
    reasons = []
    for side, windows, began in zip(SIDES, extra, found.resumed[::-1], strict=True):
        more = [window for window in windows if window > found.windows[-1]]
        # What a resumed run did before it was resumed is no step that it lacks.
        fewer = [window for window in windows if (began or 0) <= window < found.windows[0]]
        if more or fewer:
            last = found.completed[-1] if found.completed else found.windows[-1]
            reasons.append(reason("unequal-length", first=found.windows[0], last=last, side=side, count=len(more) + len(fewer)))
    return reasons


def _few(names: list[Any]) -> str:
    return (", ".join(map(str, names[:5])) + (f" and {len(names) - 5} more" if len(names) > 5 else "")) or "none"
