"""How well the sites of a plan are found again, on stored pairs of traces.

    python -m tests.benchmarks.plans FOLDER...      each FOLDER/CASE/{reference,suspect}[/trace] is a run
    python -m tests.benchmarks.plans FOLDER --variants CASES

Prints Markdown. "own sides": a plan made from both sides, looked for in each of them (all of it should be there). "unseen side": a
plan made from the reference alone, looked for in the suspect, which is a refactoring with a bug in it; what the two really share is what
aligning them by content says, and a site that "has moved" is right when the aligner pairs it with the boundary that it was taken for. With
--variants the suspect's program in CASES is refactored by `tests.variants` (three to five value-neutral edits at random), run, and the plan
of both sides is looked for in that run.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np

from opguard_core.plan.document import Plan, SiteKey
from opguard_core.preflight.discover import Discovery, discover
from opguard_core.preflight.follow import follow
from opguard_core.trace.reader import Run
from tests.variants.edits import EDITS
from tests.variants.program import Inapplicable, Program
from tests.variants.runs import running


def plan_of(found: Discovery) -> Plan:
    return Plan("full", None, False, found.sites, {"steps_looked_at": found.steps})


def one_pair(reference: Run, suspect: Run) -> Counter[str]:
    """Counts of one pair."""
    both = discover(reference, suspect)
    plan = plan_of(both)
    counts: Counter[str] = Counter({"sites": len(plan.sites)})
    for name, run in (("reference", reference), ("suspect", suspect)):
        seen = follow(plan, run)
        counts.update({f"{name} found": seen.found, f"{name} moved": len(seen.moved), f"{name} missing": len(seen.missing)})
    alone = plan_of(discover(reference, reference))
    seen = follow(alone, suspect)
    truth: dict[SiteKey, set[SiteKey]] = defaultdict(set)
    for site in both.sites:
        truth[site.key].add(site.other or site.key)
    judged = [move for move in seen.moved if move.site.key in truth]
    counts.update(
        {
            "unseen sites": len(alone.sites),
            "unseen shared": sum(site.key in truth for site in alone.sites),
            "unseen found": seen.found,
            "unseen moved": len(seen.moved),
            "unseen missing": len(seen.missing),
            "moves judged": len(judged),
            "moves right": sum(move.now in truth[move.site.key] for move in judged),
        }
    )
    return counts


def on_variants(folder: Path, cases: Path) -> None:
    """Refactor each suspect that is one process, run it observed, look for the plan of the stored pair in it."""
    total: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="opguard-plans-") as scratch, running(Path(scratch)) as runner:
        for facts in (json.loads(path.read_text()) for path in sorted(cases.glob("*/case.json"))):
            slug, sides = facts["slug"], sides_of(folder / facts["slug"])
            if sides is None or facts["launch"][0] == "torchrun":
                continue
            program = Program.read(cases / slug / "suspect", facts["launch"])
            program.written()
            try:
                EDITS["mixed"](program, np.random.default_rng([7, *slug.encode()]))
            except Inapplicable:
                continue
            program.write(cases / slug / "suspect", Path(scratch) / slug)
            trace = Path(scratch) / f"{slug}-trace"
            if set(runner.observed(Path(scratch) / slug, facts, trace)) != {0}:
                raise RuntimeError(f"{slug}: the variant did not end by itself")
            seen = follow(plan_of(discover(*(Run.open(side) for side in sides))), Run.open(trace))
            total.update({"programs": 1, "sites": seen.sites, "found": seen.found, "moved": len(seen.moved), "missing": len(seen.missing)})
    print(f"| {' | '.join(total)} | share |\n|{'---|' * (len(total) + 1)}")
    share = (total["found"] + total["moved"]) / max(1, total["sites"])
    print(f"| {' | '.join(map(str, total.values()))} | {share:.2%} |")


def sides_of(case: Path) -> list[Path] | None:
    """Both traces of a case, if it has them."""
    sides = [side / "trace" if (side / "trace").is_dir() else side for side in (case / "reference", case / "suspect")]
    return sides if all((side / "rank-00000").is_dir() for side in sides) else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--variants", type=Path, metavar="CASES")
    options = parser.parse_args()
    if options.variants is not None:
        on_variants(options.folders[0], options.variants)
        return
    total: Counter[str] = Counter()
    pairs = 0
    for folder in options.folders:
        for case in sorted(folder.iterdir()):
            sides = sides_of(case)
            if sides is not None:
                total += one_pair(*(Run.open(side) for side in sides))
                pairs += 1
    print(f"{pairs} pairs of traces.\n\n| plan of | looked for in | sites | found | moved | missing |\n|---|---|---|---|---|---|")
    for name in ("reference", "suspect"):
        row = " | ".join(str(total[f"{name} {what}"]) for what in ("found", "moved", "missing"))
        print(f"| both sides | {name} | {total['sites']} | {row} |")
    row = " | ".join(str(total[f"unseen {what}"]) for what in ("found", "moved", "missing"))
    print(f"| reference alone | suspect (unseen) | {total['unseen sites']} | {row} |")
    shared, sites = total["unseen shared"], total["unseen sites"]
    print(f"\nOf these {sites}, the aligner finds {shared} ({shared / max(1, sites):.1%}) on the unseen side as well.")
    right, judged = total["moves right"], total["moves judged"]
    print(f"Moves that it can judge: {judged}; right: {right} ({right / max(1, judged):.1%}).")


if __name__ == "__main__":
    main()
