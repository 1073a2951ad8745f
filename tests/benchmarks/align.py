"""Cost of judging 1 M x 1 M events on one core: `python -m tests.benchmarks.align FOLDER [--events N] [--layers L]`.

Writes two synthetic runs into FOLDER once (minutes) and reuses them: a GPT of repeated layers, the suspect with 1 %
operators inserted, up to 1 % left out and 2 % swapped with their neighbour. Prints processor time of reading alone, of the
whole comparison (align and certify, reading included) and the largest resident size. Budget: <= 10 s, later <= 5 s, <= 2 GB.
"""

from __future__ import annotations

import argparse
import resource
import time
from pathlib import Path

from opguard_core.certify.compare import compare
from opguard_core.trace.reader import Run
from tests.support.synthetic import GptShape, Side, gpt, harmless_edits, write_run


def prepare(folder: Path, events: int, layers: int) -> tuple[Path, Path]:
    sides = folder / f"reference-{events}-{layers}", folder / f"suspect-{events}-{layers}"
    if not all((side / "manifest.json").exists() for side in sides):
        per_step = len(gpt(GptShape(layers=layers, steps=1)).body)
        program = gpt(GptShape(layers=layers, steps=max(1, events // per_step)))
        write_run(sides[0], program)
        write_run(sides[1], Side(program, harmless_edits(program, 7)))
    return sides


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--layers", type=int, default=30)
    args = parser.parse_args()
    runs = [Run.open(side) for side in prepare(args.folder, args.events, args.layers)]
    started = time.process_time()
    events = sum(len(window) for run in runs for rank in run.ranks.values() for window in rank.iter_windows())
    reading_s = time.process_time() - started
    started = time.process_time()
    verdict = compare(*runs)
    whole_s = time.process_time() - started
    print(f"{events} events on both sides: {verdict.verdict}, paired {verdict.compared['paired_share']}")
    print(f"reading {reading_s:.1f} s, whole comparison {whole_s:.1f} s, {whole_s / events * 1e6:.1f} us per event")
    print(f"largest resident size {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
