"""Injects faults and prints the table.

    python -m tests.faults.injection --faults 500 --seed 1 [--only KIND …] [--out FILE] [--work DIR]

FILE gets a JSON line per fault; run again, the command goes on where it stopped. DIR keeps the uninjected pairs, and the
traces of every fault that was not answered exactly.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tests.faults.injection import cuts, faults
from tests.faults.injection.campaign import MODES, Campaign
from tests.faults.injection.child import fork, wait
from tests.faults.injection.table import listing, table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=500)
    parser.add_argument("--cuts", type=int, default=0, help="traces cut short instead of faults")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=[], choices=faults.KINDS)
    parser.add_argument("--modes", nargs="*", default=MODES)
    parser.add_argument("--pairs", nargs="*", default=[], help="names of pairs; all by default")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--workers", type=int, default=1)
    args = parser.parse_args()
    work = args.work or Path(tempfile.mkdtemp(prefix="opguard-injection-"))
    work.mkdir(parents=True, exist_ok=True)
    campaign = Campaign(work, args.seed, only=tuple(args.only), modes=tuple(args.modes), chosen=tuple(args.pairs))
    out = args.out or work / ("cuts.jsonl" if args.cuts else "faults.jsonl")
    done = {record["index"] for record in recorded(out)}
    waiting = [index for index in range(args.cuts or args.faults) if index not in done]
    one = partial(cuts.one, campaign) if args.cuts else campaign.one
    workers = [fork(partial(work_off, one, waiting[number :: args.workers], out)) for number in range(args.workers)]
    wait(workers, timeout_s=None)
    records = sorted(recorded(out), key=lambda record: record["index"])
    print(cuts.table(records) if args.cuts else f"{table(records)}\n\n{listing(records)}")


def recorded(out: Path) -> list[dict[str, Any]]:
    """What a campaign has written so far."""
    return [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []


def work_off(one: Callable[[int], dict[str, Any]], indices: list[int], out: Path) -> None:
    """Do some of the faults and append a line for each."""
    for number, index in enumerate(indices):
        record = one(index)
        with out.open("a") as file:
            file.write(json.dumps(record) + "\n")
        said = f"{record['mark']:15s} {record['kind']:18s} {record.get('pair', '')} {record.get('said', '')}"
        print(f"{number + 1:4d} of {len(indices)}: {said}", flush=True)


if __name__ == "__main__":
    main()
