"""DDP and FSDP2 over NCCL, against themselves and against planted faults: which device work has no boundary, and the verdict.

    python3 -m tests.gpu.ranks [--only ddp fsdp2 ddp-one-unsynced] [--out FILE] [--keep FOLDER] [--dry-run]

Two cards, half a minute each: `compare --deterministic` of a program in two folders, two ranks by torchrun. By the rules (NCCL submits
inside the c10d operator, on the thread that calls it) nothing that touches is to be left, and `identical` is to be given; a planted fault
is to be found at its operator, step and rank. ``--dry-run`` runs them over gloo on the CPU, where there is no device work to tell.
``--keep`` leaves each answer, and what was said beside it, in a folder.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from opguard_core.engines import native_build
from tests.gpu.rows import Rows, where

REPOSITORY = Path(__file__).resolve().parents[2]
COLUMNS = ("program", "verdict", "launches, with a boundary, touching (by rank)", "without a boundary", "right")
HEAD = """
import os, sys
import torch
import torch.distributed as dist
from torch import nn
cuda = sys.argv[1] == "cuda"
dist.init_process_group("nccl" if cuda else "gloo")
rank = dist.get_rank()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
if cuda:
    torch.cuda.set_device(device)
torch.manual_seed(1)
net = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)).to(device)
"""
TAIL = """
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, foreach=True)
for step in range(3):
    torch.manual_seed(10 * step + rank)
    optimizer.zero_grad()
    net(torch.randn(8, 64).to(device)).square().mean().backward()
    optimizer.step()
dist.destroy_process_group()
"""
PROGRAMS = {
    "ddp": "net = nn.parallel.DistributedDataParallel(net, bucket_cap_mb=0.05)\n",
    "ddp-buffers": "net = nn.parallel.DistributedDataParallel(nn.Sequential(net, nn.BatchNorm1d(64).to(device)))\n",
    "fsdp2": "from torch.distributed.fsdp import fully_shard\nfor layer in (net[0], net[2], net):\n    fully_shard(layer)\n",
    "coalesced": "",
}
BACKWARD = "    net(torch.randn(8, 64).to(device)).square().mean().backward()\n"


class Fault(NamedTuple):
    """An edit of a program, and where the sides part."""

    program: str
    old: str
    new: str
    step: int
    rank: int
    operators: tuple[str, ...]  # base names of which one is the first to differ


FAULTS = {
    "ddp-one-unsynced": Fault(
        "ddp",
        BACKWARD,
        "    with net.no_sync() if step == 1 else contextlib.nullcontext():\n    " + BACKWARD,
        step=1,
        rank=0,
        operators=("allreduce_", "mul", "add_", "copy_"),  # the bucket's first operator is the first that is missing
    ),
    "coalesced-maximum": Fault(
        "coalesced", "all_reduce(p.grad)", "all_reduce(p.grad, op=dist.ReduceOp.MAX)", 0, 0, ("allreduce_", "allreduce_coalesced_")
    ),
    "fsdp2-second-rank": Fault(
        "fsdp2", BACKWARD, BACKWARD.replace(".square()", ".square().mul(1.001 if step == 1 and rank else 1.0)"), 1, 1, ("mul",)
    ),
}


def source(name: str) -> str:
    """Text of a program."""
    if name == "coalesced":
        reduced = "    with dist._coalescing_manager(device=device):\n        [dist.all_reduce(p.grad) for p in net.parameters()]\n"
        return HEAD + TAIL.replace("    optimizer.step()\n", f"{reduced}    optimizer.step()\n")
    return HEAD + PROGRAMS[name] + TAIL


def sides(name: str) -> tuple[str, str]:
    """Texts of a program with itself, or with its fault."""
    fault = FAULTS.get(name)
    if fault is None:
        return source(name), source(name)
    text = source(fault.program)
    assert fault.old in text, fault
    return text, "import contextlib\n" + text.replace(fault.old, fault.new)


def compared(name: str, folder: Path, device: str, keep: Path | None = None) -> dict[str, Any]:
    """`compare --json` of a program's two sides, or `{"error": ...}`."""
    for side, text in zip(("reference", "suspect"), sides(name), strict=True):
        (folder / side).mkdir()
        (folder / side / "train.py").write_text(text, "utf-8")
    words = [
        sys.executable,
        "-m",
        "opguard_harness",
        "compare",
        "--json",
        "--deterministic",
        "--timeout",
        "300",
        "--python",
        sys.executable,
    ]
    words += ["--reference", str(folder / "reference"), "--suspect", str(folder / "suspect"), "--out", str(folder / "out"), "--"]
    words += ["python", "-m", "torch.distributed.run", "--nproc-per-node", "2", "train.py", device]
    path = os.pathsep.join([str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH", "")])])
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, capture_output=True, text=True, cwd=folder, env=environment, check=False)
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        (keep / f"{name}.json").write_text(done.stdout, "utf-8")
        logs = (f"== {path.relative_to(folder)}\n{path.read_text(errors='replace')}" for path in sorted(folder.rglob("std*.txt")))
        (keep / f"{name}.txt").write_text("\n".join([done.stderr, *logs]), "utf-8")
    try:
        return dict(json.loads(done.stdout))
    except ValueError:
        return {"error": {"text": (done.stderr.strip().splitlines() or ["no output"])[-1]}}


def tell(rows: Rows, name: str, answer: dict[str, Any], *, dry_run: bool) -> bool:
    """The row of one program; whether it is as the rules say."""
    if answer.get("error") or answer.get("verdict") is None:
        rows.row((name, f"ERROR: {str((answer.get('error') or {}).get('text', 'no verdict'))[:300]}", None, None, "NO"))
        return False
    ranks = (answer.get("device_work") or {}).get("suspect") or {}
    watched = {rank: one for rank, one in ranks.items() if one["watched"]}
    counts = "; ".join(f"{rank}: {one['launches']}, {one['attributed']}, {one['touching']}" for rank, one in watched.items())
    loose = [
        f"rank {rank}: {row['name']} x{row['count']} ({row['touching']} touch)"
        for rank, one in watched.items()
        for row in one["unattributed"]
    ]
    reasons = ", ".join(reason["slug"] for reason in answer.get("reasons") or [])
    expected, found = FAULTS.get(name), answer.get("pivot") or {}
    if expected is None:
        right = answer["verdict"] == "identical" and not any(one["touching"] for one in watched.values())
        told = answer["verdict"]
    else:
        where_found = found.get("step"), found.get("rank"), str(found.get("operator")).split(".")[1:2]
        right = (
            answer["verdict"] == "diverged"
            and where_found[:2] == (expected.step, expected.rank)
            and where_found[2][0] in expected.operators
        )
        told = f"{answer['verdict']}; step {found.get('step')} rank {found.get('rank')} {found.get('operator')} [{found.get('origin')}]"
    right = right and (dry_run or len(watched) == 2)
    rows.row((name, f"{told} {reasons}".strip(), counts or "not watched", "; ".join(loose[:8]), "yes" if right else "NO"))
    return right


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], choices=(*PROGRAMS, *FAULTS))
    parser.add_argument("--out", type=Path, help="Rows are appended to this file.")
    parser.add_argument("--keep", type=Path, help="Answers and logs are left in this folder.")
    parser.add_argument("--dry-run", action="store_true")
    options = parser.parse_args()
    device = "cpu" if options.dry_run else "cuda"
    names = options.only or [name for name in (*PROGRAMS, *FAULTS) if not options.dry_run or name == "ddp"]
    native_build.load()  # once, before a side's time counts
    rows, right = Rows(options.out), True
    rows.head("Two ranks", f"{where(device)} `compare --deterministic`, default mode.", COLUMNS)
    for name in names:
        with tempfile.TemporaryDirectory(prefix="opguard-ranks-") as scratch:
            right &= tell(rows, name, compared(name, Path(scratch), device, options.keep), dry_run=options.dry_run)
    return 0 if right else 1


if __name__ == "__main__":
    raise SystemExit(main())
