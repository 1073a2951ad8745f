"""Traces that stop early: the training killed at a random operator, or its files cut at a random byte.

No such trace may ever give `identical`, and none may name a difference, for there is none.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from opguard_core.trace.manifest import MANIFEST_NAME
from tests.faults.injection import child, truth
from tests.faults.injection.child import Order

if TYPE_CHECKING:
    from tests.faults.injection.campaign import Campaign

KILL, TAIL, BYTE, LOST = "killed in the middle", "segments lost", "cut at a byte", "a segment gone"
WAYS = (KILL, TAIL, BYTE, LOST)


def one(campaign: Campaign, index: int) -> dict[str, Any]:
    """Cut one suspect of an identical pair and judge the answer."""
    rng = np.random.default_rng([campaign.seed, 1 << 20, index])
    pair, way = campaign.draw_pair(rng), WAYS[index % len(WAYS)]
    mode = campaign.mode_of(pair)
    baseline = campaign.baseline(pair, mode)
    rank = int(rng.integers(len(baseline.calls)))
    folder = campaign.work / f"cut-{index}"
    shutil.rmtree(folder, ignore_errors=True)
    if way == KILL:
        at = int(rng.integers(1, baseline.calls[rank]))
        child.run(Order(pair.suspect, folder, mode, rank=rank, kill_at=at))
        said = f"call {at} of {baseline.calls[rank]}"
    else:
        shutil.copytree(baseline.plain, folder / "trace")
        said = _cut(folder / "trace" / f"rank-{rank:05d}", way, rng)
    given = child.in_fork(lambda: truth.answer(baseline.reference, folder / "trace"), folder / "answer.json")
    mark = "refused" if given["verdict"] == "inconclusive" else f"WRONG {given['verdict']}"
    if mark == "refused":
        shutil.rmtree(folder)
    slugs = ",".join(entry["slug"] for entry in given["reasons"])
    return {"index": index, "kind": way, "pair": pair.name, "mode": mode, "mark": mark, "said": f"{said}: {slugs}"}


def _cut(rank: Path, way: str, rng: np.random.Generator) -> str:
    """Damage a rank's folder as a machine that stops does: nothing is written after some moment."""
    segments = sorted((path for path in rank.iterdir() if path.suffix == ".arrow"), key=lambda path: (path.stat().st_mtime_ns, path.name))
    chosen = segments[int(rng.integers(len(segments)))]
    if way == LOST:
        chosen.unlink()
        return f"{chosen.name} gone"
    (rank / MANIFEST_NAME).unlink()
    for later in segments[segments.index(chosen) + 1 :]:
        later.unlink()
    if way == TAIL:
        chosen.unlink()
        return f"nothing from {chosen.name} on"
    size = int(rng.integers(chosen.stat().st_size))
    os.truncate(chosen, size)
    return f"{chosen.name} cut at {size}"


def table(records: list[dict[str, Any]]) -> str:
    """Marks by way of cutting."""
    marks = sorted({record["mark"] for record in records})
    lines = [f"| cut | n | {' | '.join(marks)} |", f"|{'---|' * (len(marks) + 2)}"]
    for way in WAYS:
        chosen = [record for record in records if record["kind"] == way]
        lines.append(f"| {way} | {len(chosen)} | {' | '.join(str(sum(r['mark'] == mark for r in chosen)) for mark in marks)} |")
    return "\n".join(lines)
