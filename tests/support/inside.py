"""Comparisons whose programs run in this process, under real capture: as launched ones, without a second to import torch for each."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from opguard_core.capture.session import start
from opguard_core.plan.config import RunConfig
from opguard_core.trace.manifest import RunManifest, write_manifest
from opguard_harness.compare.launching import SideRun
from opguard_harness.compare.request import CaptureRequest


def run_all(sides: Any, interpreter: Any, capture: CaptureRequest, results: Any, progress: Any, below: str = "", **_: Any) -> Any:
    """Stands in for `pipeline.run_all`: the same traces, from programs that run here."""
    found = []
    for side in sides:
        trace = results.partial / below / side.name / "trace"
        trace.mkdir(parents=True, mode=0o700)
        captured(side.folder, side.argv, trace, capture, side.name)
        found.append(SideRun(side.name, trace, 0, 0.0))
    return found[0], found[1]


def captured(folder: Path, argv: tuple[str, ...], trace: Path, capture: CaptureRequest, side: str) -> None:
    """Run one program under capture and write its trace."""
    # As the launcher reads the file that asks for them: from the folder it lies in.
    transplants = tuple(replace(one, kept=trace.parent / one.kept) for one in capture.transplants.get(side, ()))
    config = RunConfig(
        run_dir=trace,
        user_root=folder,
        mode=capture.mode,
        steps=capture.steps,
        keep=capture.keep.get(side),
        transplants=transplants,
        facts={"transplant": [one.boundary.as_dict() for one in transplants]} if transplants else {},
    )
    with _alone(folder, argv):
        session = start(config)
        try:
            runpy.run_path(str(folder / argv[1]), run_name="__main__")
        finally:
            session.stop("exit")
    write_manifest(trace, RunManifest(ranks=[0], mode=capture.mode, steps=capture.steps, exit={"code": 0, "signal": None}, complete=True))


@contextmanager
def _alone(folder: Path, argv: tuple[str, ...]) -> Iterator[None]:
    """The program's folder is the current one and its modules are its own; torch is afterwards as before."""
    before, path, words, modules = Path.cwd(), list(sys.path), list(sys.argv), set(sys.modules)
    dtype, state, threads = torch.get_default_dtype(), torch.get_rng_state(), torch.get_num_threads()
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    sys.argv = [str(folder / argv[1]), *argv[2:]]
    sys.dont_write_bytecode, wrote = True, sys.dont_write_bytecode
    try:
        yield
    finally:
        os.chdir(before)
        sys.path[:], sys.argv, sys.dont_write_bytecode = path, words, wrote
        for name in set(sys.modules) - modules:
            if str(getattr(sys.modules[name], "__file__", "") or "").startswith(f"{folder}{os.sep}"):
                del sys.modules[name]
        torch.set_default_dtype(dtype)
        torch.set_rng_state(state)
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(False)
        torch.set_grad_enabled(True)


def repeated(script: Path, runs: int = 100) -> dict[str, Any]:
    """Run a `repro.py` in this process; what its ``--json`` says."""
    import contextlib
    import io
    import json

    threads = torch.get_num_threads()
    program = runpy.run_path(str(script), run_name="repro")
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said):
            assert program["main"](["--json", "--runs", str(runs)]) == 0
    finally:
        torch.set_num_threads(threads)
    facts: dict[str, Any] = json.loads(said.getvalue())
    return facts
