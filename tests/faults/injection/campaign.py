"""Many faults, one after the other, each from its own random numbers, so that a campaign can be interrupted and repeated."""

from __future__ import annotations

import fcntl
import json
import shutil
import time
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from opguard_core.trace.reader import Run
from tests.faults.injection import child, faults, truth
from tests.faults.injection.child import Order
from tests.faults.injection.faults import Fault, Site, Spot
from tests.faults.injection.programs import Pair, pairs

ATTEMPTS = 8
"""Draws of one fault before it is given up: a skipped write may have had nothing to write, a changed index may end the process."""
SHARE_OF_RANKS = 0.1
MODES = ("verify", "full")


@dataclass(frozen=True)
class Baseline:
    """A pair without faults: proved identical.

    Attributes:
        reference: Trace of the reference.
        plain: Trace of the suspect.
        calls: Calls of each rank of the suspect.
        sites: Where faults can be put, by rank.
        testimony: What each rank of the suspect computed, as far as it computes the same twice.
        counterparts: By rank, reference events by suspect event.
    """

    reference: Path
    plain: Path
    calls: tuple[int, ...]
    sites: list[list[Site]]
    testimony: list[dict[str, Any]]
    counterparts: list[dict[int, list[int]]]


class NotIdentical(Exception):
    """An uninjected pair is not identical, so nothing can be injected into it."""


class Campaign:
    """Faults of one seed.

    Args:
        work: Folder for traces; kept between runs of one seed for the uninjected pairs.
        seed: Of the choice of pairs, modes, kinds and events.
        only: Kinds to inject, all by default.
        modes: Capture modes.
    """

    def __init__(
        self, work: Path, seed: int, *, only: tuple[str, ...] = (), modes: tuple[str, ...] = MODES, chosen: tuple[str, ...] = ()
    ) -> None:
        self.work, self.seed, self.modes = work, seed, modes
        self.kinds = only or faults.KINDS
        self._pairs = {ranks: [pair for pair in pairs(ranks=ranks) if not chosen or pair.name in chosen] for ranks in (False, True)}
        self._baselines: dict[tuple[str, str], Baseline] = {}

    def one(self, index: int) -> dict[str, Any]:
        """Inject one fault and judge the answer."""
        rng = np.random.default_rng([self.seed, index])
        kind = self.kinds[index % len(self.kinds)]
        started = time.monotonic()
        for attempt in range(ATTEMPTS):
            pair = self.draw_pair(rng)
            mode = self.mode_of(pair)
            baseline = self.baseline(pair, mode)
            rank = int(rng.integers(len(baseline.calls)))
            # What one side alone does, or does with other inputs, is no part of the equal prefix.
            prefix = [site for site in baseline.sites[rank] if site.seq in baseline.counterparts[rank]]
            fault = faults.draw(rng, kind, prefix)
            if fault is None:
                continue
            judged = self.inject(pair, mode, fault, rank, f"fault-{index}-{attempt}")
            if judged is not None:
                return {"index": index, "seed": self.seed, **judged, "seconds": round(time.monotonic() - started, 2)}
        return {"index": index, "seed": self.seed, "kind": kind, "mark": "void", "seconds": round(time.monotonic() - started, 2)}

    def draw_pair(self, rng: np.random.Generator) -> Pair:
        """A pair at random: two ranks in `SHARE_OF_RANKS`, else one program or two programs equally often."""
        single, ranks = self._pairs[False], self._pairs[True]
        if ranks and (not single or rng.random() < SHARE_OF_RANKS):
            return ranks[int(rng.integers(len(ranks)))]
        groups = [group for group in ([pair for pair in single if pair.is_same], [pair for pair in single if not pair.is_same]) if group]
        group = groups[int(rng.integers(len(groups)))]
        return group[int(rng.integers(len(group)))]

    def mode_of(self, pair: Pair) -> str:
        """The mode a pair is captured in: one a pair and seed, so that every pair runs without faults once."""
        return self.modes[(zlib.crc32(pair.name.encode()) + self.seed) % len(self.modes)]

    # -- without faults ------------------------------------------------------------------------------------------------

    def baseline(self, pair: Pair, mode: str) -> Baseline:
        """The uninjected pair, run and proved identical at its first use.

        Raises:
            NotIdentical: It is not.
        """
        key = (pair.name, mode)
        if key not in self._baselines:
            lock = self.work / "pairs" / f"{mode}-{pair.name}.lock"
            lock.parent.mkdir(parents=True, exist_ok=True)
            with lock.open("w") as file:
                fcntl.flock(file, fcntl.LOCK_EX)  # another worker may need the same pair
                self._baselines[key] = self._load(pair, mode)
        return self._baselines[key]

    def _load(self, pair: Pair, mode: str) -> Baseline:
        folder = self.work / "pairs" / mode / pair.name
        if not (folder / "facts.json").exists():
            shutil.rmtree(folder, ignore_errors=True)
            if not all(child.run(Order(pair.reference, folder / "reference", mode))):
                raise NotIdentical(f"{pair.name}: the reference died, see {folder}")
            outcomes = child.run(Order(pair.suspect, folder / "plain", mode))
            traces = folder / "reference" / "trace", folder / "plain" / "trace"
            answer = child.in_fork(lambda: truth.answer(*traces), folder / "answer.json")
            if answer["verdict"] != "identical":
                raise NotIdentical(f"{pair.name} in mode {mode}: {answer['verdict']}, see {folder}")
            calls = tuple(outcome["calls"] for outcome in outcomes if outcome is not None)
            # The last call is known only now; two more runs look at what is alive then.
            last = tuple(number - 1 for number in calls)
            again = [child.run(Order(pair.suspect, folder / f"again-{number}", mode, last_call=last)) for number in range(2)]
            ranks = range(len(calls))
            facts = {
                "calls": calls,
                "sites": [outcome["sites"] for outcome in outcomes if outcome is not None],
                "testimony": [_reproducible(a["testimony"], b["testimony"]) for a, b in zip(*again, strict=True) if a and b],
                "counterparts": child.in_fork(
                    lambda: [sorted(truth.counterparts(*(Run.open(trace).ranks[rank] for trace in traces)).items()) for rank in ranks],
                    folder / "counterparts.json",
                ),
            }
            for number in range(2):
                shutil.rmtree(folder / f"again-{number}")
            (folder / "facts.json").write_text(json.dumps(facts))
        facts = json.loads((folder / "facts.json").read_text())
        return Baseline(
            folder / "reference" / "trace",
            folder / "plain" / "trace",
            tuple(facts["calls"]),
            [[_site(site) for site in sites] for sites in facts["sites"]],
            facts["testimony"],
            [dict(map(tuple, entries)) for entries in facts["counterparts"]],
        )

    # -- one fault -----------------------------------------------------------------------------------------------------

    def inject(self, pair: Pair, mode: str, fault: Fault, rank: int, name: str) -> dict[str, Any] | None:
        """Run the suspect with a fault and judge the answer; None when the fault did nothing or ended the process."""
        baseline = self.baseline(pair, mode)
        folder = self.work / name
        shutil.rmtree(folder, ignore_errors=True)
        outcomes = child.run(Order(pair.suspect, folder, mode, fault, rank, tuple(number - 1 for number in baseline.calls)))
        hit = outcomes[rank]
        if hit is None or not all(outcomes) or not hit["effect"] or hit["placed"] is None:
            shutil.rmtree(folder)
            return None
        assert not hit["problem"], hit["problem"]
        absorbed = all(
            outcome is not None and all(outcome["testimony"][part] == value for part, value in testimony.items())
            for outcome, testimony in zip(outcomes, baseline.testimony, strict=True)
        )
        counterparts = baseline.counterparts[rank]
        own, paired = tuple(counterparts[fault.seq]), frozenset(counterparts)
        case = truth.Case(fault, rank, hit["placed"], own, folder / "trace", baseline.plain, absorbed, paired)

        def judge() -> dict[str, Any]:
            given = truth.answer(baseline.reference, case.suspect)
            mark, said = truth.mark(case, given)
            origin = given["pivot"]["origin"] if given["pivot"] else ""
            return {"mark": mark, "said": said, "origin": origin, "verdict": given["verdict"]}

        judged = child.in_fork(judge, folder / "judged.json")
        if judged["mark"] in (truth.EXACT, truth.ABSORBED):
            shutil.rmtree(folder)  # the others stay, to be looked at
        where = {"pair": pair.name, "same_code": pair.is_same, "ranks": len(outcomes), "rank": rank, "mode": mode}
        return {
            **where,
            "kind": fault.kind,
            **judged,
            "absorbed": absorbed,
            "fault": asdict(fault),
            "placed": case.placed,
            "counterpart": own[0],
            "ended": hit["ended"],
        }


def _reproducible(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """The parts of a testimony that two runs without faults share; a program that keeps scratch memory does not share all."""
    return {part: value for part, value in other.items() if value == one[part]}


def _site(plain: dict[str, Any]) -> Site:
    spots = {key: tuple(Spot(**{**spot, "shape": tuple(spot["shape"])}) for spot in plain[key]) for key in ("results", "written", "read")}
    return Site(**{**plain, **spots, "scalars": tuple((where, value) for where, value in plain["scalars"])})
