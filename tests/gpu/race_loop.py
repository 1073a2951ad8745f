"""How often the stream race of `programs/stream-race` is there: bare, and under each mode, in one process.

    python -m tests.gpu.race_loop [--modes bare verify full trusted sentinel] [--repetitions 20] [--out FILE]

Bare must part from the right program in at least 18 of 20 repetitions: the race is there by construction (a delay kernel of 40 ms
stands before the read, the overwriting stream waits for 1 ms). Observed it must be found in at least 16 of 20: what looks must not
make the race go away, as any wait for the device would. In mode verify every find must have the origin `mutated`.
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from opguard_core.capture.session import start
from opguard_core.certify.compare import compare
from opguard_core.certify.verdict import Verdict
from opguard_core.plan.config import AUTO, ENGINES, RunConfig
from opguard_core.trace.manifest import RunManifest, write_manifest
from opguard_core.trace.reader import Run
from tests.gpu.rows import Rows, where

PROGRAM = Path(__file__).parent / "programs" / "stream-race"
MODES = ("bare", "verify", "full", "trusted", "sentinel")
STEPS = 4
NEEDED = {"bare": 0.9}
NEEDED_OBSERVED = 0.8
COLUMNS = ("race, in one process", "parted", "needed", "control (right against right)", "origins", "milliseconds a run", "holds")


def load(side: str) -> ModuleType:
    """The program of one side as a module."""
    spec = importlib.util.spec_from_file_location(f"stream_race_{side}", PROGRAM / side / "train.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def captured(side: ModuleType, name: str, device: torch.device, mode: str, engine: str, folder: Path) -> Path:
    """Run one side under a mode; its trace."""
    folder.mkdir(parents=True)
    session = start(RunConfig(run_dir=folder, user_root=PROGRAM / name, mode=mode, engine=engine))
    ended = "exception"
    try:
        side.train(device, STEPS).tolist()
        ended = "exit"
    finally:
        session.stop(ended)
    facts: dict[str, Any] = {"created_utc": "2026-01-01T00:00:00Z", "cwd": str(PROGRAM / name), "user_root": str(PROGRAM / name)}
    write_manifest(folder, RunManifest(**facts, mode=mode, exit={"code": 0, "signal": None}, ranks=[0], complete=True))
    return folder


def found(verdict: Verdict) -> str:
    """The origin of what was found, "" if nothing was."""
    if verdict.pivot is not None:
        return verdict.pivot.origin
    if verdict.located is not None:
        return f"step {verdict.located['step']}"
    shown = verdict.rank_firsts or verdict.candidates
    return "inconclusive: " + ", ".join(reason.slug for reason in verdict.reasons) if shown and verdict.verdict != "identical" else ""


def bare(device: torch.device, repetitions: int) -> tuple[list[str], bool]:
    """Losses against those of the right program; whether that one agrees with itself."""
    sides = {name: load(name) for name in ("reference", "suspect")}
    right = sides["reference"].train(device, STEPS)
    again = all(torch.equal(sides["reference"].train(device, STEPS), right) for _ in range(2))
    return ["parted" if not torch.equal(sides["suspect"].train(device, STEPS), right) else "" for _ in range(repetitions)], again


def observed(device: torch.device, mode: str, engine: str, repetitions: int, scratch: Path) -> tuple[list[str], bool]:
    """What the comparison finds in each repetition; whether the right program is equal to itself."""
    sides = {name: load(name) for name in ("reference", "suspect")}
    right = Run.open(captured(sides["reference"], "reference", device, mode, engine, scratch / "reference"))
    again = (
        compare(right, Run.open(captured(sides["reference"], "reference", device, mode, engine, scratch / "again"))).verdict == "identical"
    )
    told = []
    for number in range(repetitions):
        folder = captured(sides["suspect"], "suspect", device, mode, engine, scratch / str(number))
        told.append(found(compare(Run.open(scratch / "reference"), Run.open(folder))))
        shutil.rmtree(folder)
    return told, again


def measure(device: torch.device, modes: list[str], engine: str, repetitions: int, rows: Rows) -> bool:
    """All modes, a row each as soon as it is known; whether all criteria hold."""
    rows.head("Stream race, repeated in one process", f"{where(device.type)} Engine {engine}.", COLUMNS)
    holds = True
    for mode in modes:
        begun = time.perf_counter()
        with tempfile.TemporaryDirectory(prefix="opguard-race-") as scratch:
            told, again = bare(device, repetitions) if mode == "bare" else observed(device, mode, engine, repetitions, Path(scratch))
        each = (time.perf_counter() - begun) / (repetitions + 2) * 1e3
        there = [origin for origin in told if origin]
        needed = NEEDED.get(mode, NEEDED_OBSERVED) * repetitions
        origins = Counter(there)
        right = len(there) >= needed and again and (mode != "verify" or set(origins) <= {"mutated"})
        holds &= right
        said = ", ".join(f"{count} {name}" for name, count in origins.most_common(4))
        rows.row(
            (mode, f"{len(there)} of {repetitions}", f"{needed:.0f}", "equal" if again else "DIFFERS", said, each, "yes" if right else "NO")
        )
    return holds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--modes", nargs="+", default=list(MODES), choices=MODES)
    parser.add_argument("--engine", default=AUTO, choices=ENGINES)
    parser.add_argument("--repetitions", type=int, default=20)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    return 0 if measure(torch.device(options.device), options.modes, options.engine, options.repetitions, Rows(options.out)) else 1


if __name__ == "__main__":
    raise SystemExit(main())
