"""Capture one run and keep it in the state folder."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import anyio

from opguard_harness.access.opened import refuse_opened
from opguard_harness.access.rules import current
from opguard_harness.access.traces import trace_folder
from opguard_harness.compare.folders import Results, choose_out
from opguard_harness.compare.interpreter import find
from opguard_harness.compare.launching import SideRun, run_side
from opguard_harness.compare.planned import heavier, require_room
from opguard_harness.compare.processes import Interrupts
from opguard_harness.compare.request import CaptureRequest, split_env
from opguard_harness.compare.sides import ProgramSide
from opguard_harness.errors import SideNotFound
from opguard_harness.report.progress import Progress
from opguard_harness.workspace.contents import contents


def capture_once(
    folder: Path, argv: tuple[str, ...], capture: CaptureRequest, *, env: list[str], out: Path, progress: Progress
) -> tuple[Path, SideRun, dict[str, Any]]:
    """Run a program once in its own folder.

    Args:
        folder: Its working directory.
        argv: Its command line, with the interpreter still spelled ``python``.
        capture: How to observe it.
        env: ``NAME=VALUE`` pairs for it.
        out: Folder for the results, absent.
        progress: Where to say what goes on.

    Returns:
        The stored run's folder, the run, and what its trace holds.

    Raises:
        OpGuardError: It could not be captured.
    """
    side = ProgramSide("run", existing_folder(folder), argv, split_env(env, "env"), folder)
    final = choose_out(out, [side.folder])
    require_room(capture.plan, final, sides=[heavier(capture.plan)])
    interpreter = find(capture.python)
    with Results(final) as results, Interrupts() as interrupts:
        kept = results.keep() / "run"
        work = partial(run_side, side, interpreter, capture, results.partial / "run", kept=kept, interrupts=interrupts, progress=progress)
        run = anyio.run(work)
        for entry in list((results.partial / "run").iterdir()):
            entry.rename(results.partial / entry.name)
        (results.partial / "run").rmdir()
        results.finish()
    stored = SideRun(run.name, final / "trace", run.exit_code, run.seconds)
    return final, stored, _brief(contents(stored.trace))


def existing_folder(folder: Path) -> Path:
    """The absolute folder.

    Raises:
        SideNotFound: It is not there, or is a trace, in which nothing runs.
        OpenedReadOnly: It came out of a pack.
    """
    path = current().path(folder, "folder")
    if not path.is_dir():
        raise SideNotFound(f"{path} is not a folder.")
    refuse_opened(path.resolve(), "folder")
    if trace_folder(path) is not None:
        raise SideNotFound(f"{path} is a trace of an earlier run, and no program's folder.")
    return path


def _brief(found: dict[str, Any]) -> dict[str, Any]:
    """The counts that fit into a tool's answer; `trace DIR` shows the rest."""
    keys = ("mode", "window", "exit", "complete", "torn", "ranks", "events", "tensors", "bytes_on_disk", "bytes_per_tensor", "operators")
    return {key: found[key] for key in keys}
