"""Value-neutral variants of cases: does any of them move a verdict or a pivot?

python -m tests.variants --cases DIR [DIR ...] [--seed S] [--per-case N] [--only KIND ...] [--case SLUG ...] [--out FILE]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import tempfile
import time
from pathlib import Path

from tests.variants.campaign import MOVED, REFUSED, Outcome, prepare, read_cases, table, variants
from tests.variants.edits import EDITS
from tests.variants.runs import running


def main() -> int:
    """Run a campaign; the exit code is 1 if anything moved."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=Path, nargs="+", required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--per-case", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=[], choices=list(EDITS))
    parser.add_argument("--case", nargs="*", default=[])
    parser.add_argument("--out", type=Path, help="every outcome, as JSON")
    parser.add_argument("--keep", type=Path, help="folder for work that is kept")
    args = parser.parse_args()
    kinds = args.only or list(EDITS)
    outcomes: list[Outcome] = []
    started = time.monotonic()
    work = args.keep or Path(tempfile.mkdtemp(prefix="variants-"))
    scratch = work / "reports"
    scratch.mkdir(parents=True, exist_ok=True)
    turn = args.seed
    try:
        with running(scratch) as runner:
            for folder in args.cases:
                for case in read_cases(folder, args.case):
                    home = work / case.slug
                    prepare(case, runner, home)
                    assert case.judge is not None
                    mark = case.judge(case.facts, case.answer)[0]
                    # Kinds take turns over the cases, so that few variants a case still cover all of them.
                    mine = [kinds[(turn + number) % len(kinds)] for number in range(max(len(kinds), args.per_case))]
                    for outcome in variants(case, runner, home, mine, args.per_case, args.seed):
                        outcomes.append(outcome)
                        turn = kinds.index(outcome.kind) + 1
                        if outcome.mark in (MOVED, REFUSED):
                            where = f"{case.slug} {outcome.kind} {'+'.join(outcome.sides)} {outcome.seed}"
                            true = " (a true place)" if outcome.true and outcome.mark == MOVED else ""
                            print(f"{outcome.mark:8s} {where}: {outcome.what}{true}", flush=True)
                    if mark != "right":
                        print(f"{mark:8s} {case.slug} as it is", flush=True)
                    shutil.rmtree(home) if not args.keep else None
                    if args.out:
                        args.out.write_text(json.dumps([dataclasses.asdict(outcome) for outcome in outcomes], indent=1))
    finally:
        if not args.keep:
            shutil.rmtree(work, ignore_errors=True)
    print(table(outcomes))
    print(f"\nseed {args.seed}, {args.per_case} a case, {time.monotonic() - started:.0f} s")
    return int(any(outcome.mark == MOVED for outcome in outcomes))


if __name__ == "__main__":
    raise SystemExit(main())
