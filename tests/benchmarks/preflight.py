"""How good a preflight's cost estimate is: each mode measured, and estimated from a measurement of `full`.

    python -m tests.benchmarks.preflight [--repeats 3] [--steps 6]

Prints Markdown: measured and estimated ratio of every mode on three programs, bytes of trace per step against what a run of
three times the steps really writes, and the weights that fit these measurements best.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from opguard_core.ids import MODES, OPERATOR_MODES
from opguard_core.plan.command import launch_argv
from opguard_core.preflight.estimate import BYTE_S, EVENT_S, STATE_TENSOR_S, TENSOR_S, mode_costs
from opguard_core.preflight.work import Measured, measure
from opguard_core.trace.reader import Run

PROGRAM = """
import itertools, torch
from torch import nn
torch.manual_seed(0)
width, depth, batch, length, kind = {width}, {depth}, {batch}, {length}, {kind!r}
if kind == "gpt":
    layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
    data = torch.randn(batch, length, width)
else:
    model = nn.Sequential(*(part for _ in range(depth) for part in (nn.Linear(width, width), nn.ReLU())))
    data = torch.randn(batch, width)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range({steps}):
    model(data).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
SHAPES = {
    "many small operators (GPT, 2 layers, d=32)": {"kind": "gpt", "width": 32, "depth": 2, "batch": 4, "length": 24},
    "a middling GPT (4 layers, d=256, 1024 tokens)": {"kind": "gpt", "width": 256, "depth": 4, "batch": 8, "length": 128},
    "few large matrices (MLP, 4 layers, d=1024)": {"kind": "mlp", "width": 1024, "depth": 4, "batch": 512, "length": 1},
}


def run(folder: Path, shape: dict[str, object], mode: str, *, steps: int, bare: int | None) -> Measured:
    """One run of a program in a mode; ended after ``steps`` if ``bare`` says how many more to time."""
    folder.mkdir()
    total = steps if bare is None else 10**9
    (folder / "train.py").write_text(PROGRAM.format(**shape, steps=total))
    early = {} if bare is None else {"end_after": steps, "bare_steps": bare}
    command = launch_argv(sys.executable, folder / "trace", [sys.executable, "train.py"], mode=mode, **early)
    subprocess.run(command, cwd=folder, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL)
    return measure(Run.open(folder / "trace"))


def one_program(
    folder: Path, name: str, shape: dict[str, object], steps: int, repeats: int
) -> tuple[list[str], list[tuple[list[float], float]]]:
    """Measure one program in all modes, interleaved so that a busy minute hits all alike; rows of the table, and work with its seconds."""
    folder.mkdir()
    sides: dict[str, list[Measured]] = {mode: [] for mode in MODES}
    for repeat in range(repeats):
        for mode in MODES:
            sides[mode].append(run(folder / f"{mode}-{repeat}", shape, mode, steps=steps, bare=steps))
    ratios = {mode: statistics.median(side.ratio or 0.0 for side in sides[mode]) for mode in MODES}
    full = sorted(sides["full"], key=lambda side: side.ratio or 0.0)[repeats // 2]
    estimates = mode_costs(full, "full", MODES)
    run(folder / "long", shape, "full", steps=3 * steps, bare=None)
    promised = full.disk_start_bytes + 3 * steps * full.disk_step_bytes
    real = sum(path.stat().st_size for path in (folder / "long" / "trace").rglob("*") if path.is_file())
    rows, fits = [], []
    for mode in MODES:
        estimate = "(measured)" if mode == "full" else f"{estimates[mode].ratio:.2f}x"
        disk = f"{promised / real:.2f}" if mode == "full" else ""
        rows.append(f"| {name} | {mode} | {ratios[mode]:.2f}x | {estimate} | {disk} |")
        load, added = full.load, statistics.median((side.observed_s or 0.0) - (side.bare_s or 0.0) for side in sides[mode])
        work = [0.0, 0.0, load.state_tensors, load.state_bytes]
        if mode in OPERATOR_MODES:
            work = [load.events, load.tensors[mode], load.state_tensors, load.read_bytes[mode] + load.state_bytes]
        fits.append((work, added))
    return rows, fits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6)
    options = parser.parse_args()
    rows, fits = [], []
    with tempfile.TemporaryDirectory(prefix="opguard-preflight-") as scratch:
        for number, (name, shape) in enumerate(SHAPES.items()):
            told, fitted = one_program(Path(scratch) / str(number), name, shape, options.steps, options.repeats)
            rows += told
            fits += fitted
    print("| program | mode | measured | estimated from `full` | bytes estimated / real, 3 x the steps |")
    print("|---|---|---|---|---|")
    print("\n".join(rows))
    print(f"\nClock: {clock()}.\n")
    for said, weights in (("fit best", least_squares(fits)), ("are in use", (EVENT_S, TENSOR_S, STATE_TENSOR_S, BYTE_S))):
        event, tensor, state, byte = (f"{weight * scale:.2f}" for weight, scale in zip(weights, (1e6, 1e6, 1e6, 1e9), strict=True))
        print(f"Weights that {said}: {event} us a boundary, {tensor} us a tensor, {state} us one of the state, {byte} ns a byte")


def clock() -> str:
    """What the times are, see `work._clock`; the load of the machine says it."""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    what = "work of the training's thread" if load > cores else "wall"
    return f"{what} (load {load:.0f} on {cores} cores)"


def least_squares(fits: list[tuple[list[float], float]]) -> list[float]:
    """Weights of boundaries, tensors, state tensors and bytes, none below zero, by relative error."""
    work = np.array([row for row, _ in fits], float)
    added = np.array([seconds for _, seconds in fits], float)
    scaled, wanted = work / added[:, None], np.ones(len(added))
    chosen = list(range(4))
    while True:
        found, *_ = np.linalg.lstsq(scaled[:, chosen], wanted, rcond=None)
        if (found >= 0).all() or len(chosen) == 1:
            break
        del chosen[int(np.argmin(found))]
    weights = [0.0] * 4
    for at, weight in zip(chosen, found.tolist(), strict=True):
        weights[at] = weight
    return weights


if __name__ == "__main__":
    main()
