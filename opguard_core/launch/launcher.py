"""One observed run, from command line to manifest: prepare the folder, start the program, wait, say what came of it."""

from __future__ import annotations

import datetime
import os
import platform
import shutil
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opguard_core import __version__
from opguard_core.contract.knobs import launch_environment, launch_report
from opguard_core.contract.source_tree import git_commit, tree_digest
from opguard_core.errors import LaunchFailed
from opguard_core.fingerprint import native
from opguard_core.launch import child, early, folder, outcome, preflight
from opguard_core.launch.folder import Process
from opguard_core.launch.startup import FOLDER as BOOTSTRAP_FOLDER
from opguard_core.plan.orders import Orders
from opguard_core.plan.redact import redact_argv
from opguard_core.plan.support import untested_pair

if TYPE_CHECKING:
    from opguard_core.trace.manifest import RunManifest


_INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


@dataclass(frozen=True)
class LaunchOptions:
    """What ``opguard_core run`` was asked; see ``plan.config.RunConfig`` for the words."""

    out: Path
    argv: list[str]
    mode: str = "full"
    steps: tuple[int, int] | None = None
    step_offset: int | None = None
    deterministic: bool = False
    plan: Path | None = None
    end_after: int | None = None
    bare_steps: int = 0


def launch(options: LaunchOptions) -> int:
    """Run the program under observation.

    Returns:
        The program's exit code, or 128 + N when signal N ended it.

    Raises:
        OpGuardError: It could not be started, or no capture started in it; in the latter case the run folder and its
            manifest stay.
    """
    env = dict(os.environ)
    preflight.check_launcher()
    warning = preflight.check(options.argv, env)
    from opguard_core.trace.manifest import write_manifest

    plan_hash = _plan_hash(options)
    run = folder.prepare(options.out)
    cwd = Path.cwd()
    orders = Orders(
        argv=options.argv,
        user_root=str(cwd),
        mode=options.mode,
        steps=options.steps,
        step_offset=options.step_offset,
        deterministic=options.deterministic,
        facts=_facts(options, cwd, env),
        plan=plan_hash,
        end_after=options.end_after,
        bare_steps=options.bare_steps,
    )
    manifest = _manifest(options, orders)
    try:
        folder.write_orders(run, orders)
        write_manifest(run, manifest)
        if warning:
            _say(warning)
        # Built before the ranks start: no compiler in a process of the training, and no two at once. Without it they use numpy.
        native.load()
        over = early.watcher(run) if options.end_after is not None else None
        ended = child.run_child(options.argv, _environment(run, orders, env), over=over)
    except LaunchFailed:
        shutil.rmtree(run, ignore_errors=True)  # nothing ran, so nothing of value is in it
        raise
    processes = folder.read_processes(run)
    spawned = folder.settle_spawned(run)
    folder.disarm(run)
    manifest.ranks = folder.captured_ranks(run)
    manifest.exit = {"code": ended.code, "signal": ended.signal}
    if ended.over:
        manifest.extra.update(step_times=early.step_times(processes), load=os.getloadavg()[0], cores=os.cpu_count())
    manifest.left_alone = outcome.left_alone(processes, spawned)
    found = outcome.gaps(processes, manifest.ranks, spawned)
    manifest.python = _first(processes, "python") or manifest.python
    untested = untested_pair(manifest.python, _first(processes, "torch")) if _first(processes, "torch") else ""
    manifest.extra.update(gaps=found, torch=_first(processes, "torch"), executable=_first(processes, "executable"), untested=untested)
    manifest.complete = not any(gap["slug"] == "still-running" for gap in found)
    write_manifest(run, manifest)
    if untested and not warning:
        _say(untested)
    failed = outcome.failure(processes)
    if failed is not None:
        raise failed
    if not manifest.ranks and ended.told not in _INTERRUPTS:
        raise outcome.nothing_captured(processes, options.argv, ended)
    return ended.status


def _plan_hash(options: LaunchOptions) -> str:
    """Hash of the plan that the run follows, "" without one.

    Raises:
        ConflictingOptions: Mode, steps or knobs are not those of the plan.
        PlanError: The plan cannot be read.
    """
    if options.plan is None:
        return ""
    from opguard_core.plan.document import load_plan  # needs what `check_launcher` checked

    plan = load_plan(options.plan)
    plan.require(mode=options.mode, steps=options.steps, deterministic=options.deterministic)
    return plan.hash


def _facts(options: LaunchOptions, cwd: Path, env: dict[str, str]) -> dict[str, Any]:
    """Contract facts that are the same for all ranks."""
    facts: dict[str, Any] = {"source.tree": tree_digest(cwd), "source.commit": git_commit(cwd)}
    if options.deterministic:
        facts["knobs.launch"] = launch_report(env)
    return facts


def _environment(run: Path, orders: Orders, env: dict[str, str]) -> dict[str, str]:
    if orders.deterministic:
        env = {**launch_environment(), **env}
    return folder.environment(run, orders, env, BOOTSTRAP_FOLDER)


def _manifest(options: LaunchOptions, orders: Orders) -> RunManifest:
    from opguard_core.trace.manifest import RunManifest

    return RunManifest(
        created_utc=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        argv=redact_argv(options.argv),
        cwd=orders.user_root,
        user_root=orders.user_root,
        mode=options.mode,
        steps=options.steps,
        python=platform.python_version(),
        platform=platform.platform(),
        extra={"plan_hash": orders.plan_hash, "planned": bool(orders.plan), "deterministic": options.deterministic, "opguard": __version__},
    )


def _first(processes: list[Process], key: str) -> str:
    """A fact of the first captured process that knows it."""
    return next((str(process.get(key)) for process in processes if process.get("folder") and process.get(key)), "")


def _say(text: str) -> None:
    sys.stderr.write(f"opguard: {text}\n")
    sys.stderr.flush()
