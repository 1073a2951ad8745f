"""How well the sites of a plan are found again, on stored pairs of traces.

    python -m tests.benchmarks.plans FOLDER...      each FOLDER/CASE/{reference,suspect}[/trace] is a run

Prints Markdown. "own sides": a plan made from both sides, looked for in each of them (all of it should be there). "unseen side": a
plan made from the reference alone, looked for in the suspect, which is a refactoring with a bug in it; what the two really share is what
aligning them by content says, and a site that "has moved" is right when the aligner pairs it with the boundary that it was taken for.
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from pathlib import Path

from opguard_core.plan.document import Plan, SiteKey
from opguard_core.preflight.discover import Discovery, discover
from opguard_core.preflight.follow import follow
from opguard_core.trace.reader import Run


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    total: Counter[str] = Counter()
    pairs = 0
    for folder in parser.parse_args().folders:
        for case in sorted(folder.iterdir()):
            sides = [side / "trace" if (side / "trace").is_dir() else side for side in (case / "reference", case / "suspect")]
            if all((side / "rank-00000").is_dir() for side in sides):
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
