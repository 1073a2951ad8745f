"""Captures the cases' programs, both sides, into a folder; on request with a sum where the digest stands."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from opguard_core.fingerprint.digest import Digests
from opguard_core.probe import tensor as probe
from tests.faults.injection import child
from tests.faults.injection.child import Order
from tests.faults.injection.memory import elements, is_plain
from tests.faults.injection.programs import Program


def capture(cases: Path, out: Path, *, prepare: Callable[[], None] | None = None) -> None:
    """Capture every case that is not there yet as `<slug>/<side>`, in mode verify."""
    for path in sorted(cases.glob("*/case.json")):
        case = json.loads(path.read_text())
        for side in ("reference", "suspect"):
            target = out / case["slug"] / side
            if (target / "manifest.json").exists():
                continue
            program = program_of(case, path.parent / side)
            work = out / case["slug"] / f"{side}.run"
            shutil.rmtree(work, ignore_errors=True)
            outcomes = child.run(Order(program, work, "verify", prepare=prepare))
            if not all(outcomes):
                print(f"    {case['slug']} {side} died: {(work / 'errors-0').read_text()[-200:]}", flush=True)
            (work / "trace").rename(target)
            shutil.rmtree(work)


def program_of(case: dict[str, Any], folder: Path) -> Program:
    """How a case is launched."""
    launch = case["launch"]
    if launch[0] == "torchrun":
        return Program(folder, int(launch[launch.index("--nproc-per-node") + 1]), tuple(launch[3:]))
    return Program(folder, 1, tuple(launch[1:]))


def sums() -> None:
    """In a child: fingerprints say the sum of the elements, and nothing else."""
    digest = probe._read

    def summed(t: torch.Tensor) -> Any:
        made = digest(t)
        if not isinstance(made, Digests) or not is_plain(t):
            return made
        word = struct.unpack("<Q", struct.pack("<d", total(t)))[0]
        return Digests(word, word, word, word & 0xFFFFFFFF, made.trivial, made.nbytes)

    probe._read = summed


def total(t: torch.Tensor) -> float:
    """The sum of a tensor's elements in double precision."""
    raw = np.ascontiguousarray(elements(t))
    name = str(t.dtype).removeprefix("torch.")
    if name == "bfloat16":
        values = (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    elif name in ("float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "bool"):
        values = raw.view(name)
    else:
        values = raw.view(np.uint8)
    with np.errstate(all="ignore"):
        return float(values.astype(np.float64).sum())
