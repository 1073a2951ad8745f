"""One observed run, from command line to manifest: prepare the folder, start the program, wait, say what came of it."""

from __future__ import annotations

import datetime
import os
import platform
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opguard_core import __version__, builds
from opguard_core.contract.knobs import launch_environment, launch_report
from opguard_core.contract.source_tree import git_commit, tree_digest
from opguard_core.determinism.environment import given
from opguard_core.engines import native_build
from opguard_core.errors import LaunchFailed
from opguard_core.fingerprint import native
from opguard_core.intercept import cupti, wanted
from opguard_core.intercept.joined import joined
from opguard_core.launch import child, early, folder, outcome, pace, preflight
from opguard_core.launch.folder import Process
from opguard_core.launch.startup import FOLDER as BOOTSTRAP_FOLDER
from opguard_core.plan.config import AUTO
from opguard_core.plan.expected import planned
from opguard_core.plan.keeping import Transplant, load_keep, load_transplants, plain_transplants, slots_to_put
from opguard_core.plan.orders import Orders
from opguard_core.plan.redact import redact_argv
from opguard_core.plan.support import untested_pair
from opguard_core.probe import kernel_build, launch_recipe

if TYPE_CHECKING:
    from opguard_core.plan.document import Plan
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
    end_with: int | None = None
    keep: Path | None = None
    transplant: Path | None = None
    engine: str = AUTO
    compiled: str = AUTO
    semantic: tuple[str, ...] = ()
    callsites: tuple[str, ...] = ()


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

    plan = _plan(options)
    keep = None if options.keep is None else load_keep(options.keep)
    transplants, label = ((), {}) if options.transplant is None else _transplants(options.transplant)
    run = folder.prepare(options.out)
    cwd = Path.cwd()
    orders = Orders(
        argv=redact_argv(options.argv),  # the file outlives a launcher that is killed
        user_root=str(cwd),
        mode=options.mode,
        steps=options.steps,
        step_offset=options.step_offset,
        deterministic=options.deterministic,
        facts={**_facts(options, cwd, env), **label},
        plan="" if plan is None else plan.hash,
        end_after=options.end_after,
        bare_steps=options.bare_steps,
        engine=options.engine,
        compiled=options.compiled,
        semantic=options.semantic if plan is None else plan.semantic,
        callsites=options.callsites if plan is None else plan.callsites,
        keep=None if keep is None else keep.as_dict(),
        transplant=plain_transplants(transplants) if transplants else None,
    )
    manifest = _manifest(options, orders)
    if plan is not None and "kernel_times" in plan.about:  # with the trace, so that shares of device time can be told from it alone
        manifest.extra["kernel_times"] = plan.about["kernel_times"]
    try:
        folder.write_orders(run, orders)
        write_manifest(run, manifest)
        if warning:
            _say(warning)
        if plan is not None and (cost := planned(plan, _recorded_steps(options, plan))) is not None:
            _say(str(cost))
        # Built before the ranks start: no compiler in a process of the training, and no two at once. Without it they use numpy.
        shim = wanted.recipe_if_wanted(env)
        built = builds.prepare(
            [
                native.recipe(),
                launch_recipe.recipe_if_needed(),
                native_build.recipe_if_needed(options.engine, options.mode),
                shim,
                cupti.recipe_if_wanted(env),
            ]
        )
        env, not_preloaded = wanted.preloaded(env, shim, built)
        manifest.extra["shim"] = {"preloaded": not_preloaded is None, "reason": not_preloaded.reason if not_preloaded else ""}
        kernel_build.prepare()
        over = pace.said_at_terminal(run, options.mode, options.steps, _say, _over(options, run))
        ended = child.run_child(options.argv, _environment(run, orders, env), over=over)
    except LaunchFailed:
        shutil.rmtree(run, ignore_errors=True)  # nothing ran, so nothing of value is in it
        raise
    processes = folder.read_processes(run)
    spawned = folder.settle_spawned(run)
    folder.disarm(run)
    manifest.ranks = folder.captured_ranks(run)
    manifest.exit = {"code": ended.code, "signal": ended.signal}
    if options.end_after is not None and (ended.over or early.step_times(processes)):
        if profiles := early.profiles(processes):
            manifest.extra.update(joined(profiles))
        manifest.extra.update(step_times=early.step_times(processes), load=os.getloadavg()[0], cores=os.cpu_count())
    if why := next((process.get("ranks_without_shim") for process in processes if process.get("ranks_without_shim")), None):
        manifest.extra["shim"]["spawned"] = why
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
    outcome.require_transplanted([one.boundary for one in transplants], processes)
    if not manifest.ranks and ended.told not in _INTERRUPTS:
        raise outcome.nothing_captured(processes, options.argv, ended)
    return ended.status


def _over(options: LaunchOptions, run: Path) -> Callable[[], Sequence[int] | None] | None:
    """What says that the program has to be ended, if anything does."""
    if options.end_after is not None:
        return early.watcher(run)
    return None if options.end_with is None else early.orphaned(run, options.end_with)


def _plan(options: LaunchOptions) -> Plan | None:
    """The plan that the run follows, None without one.

    Raises:
        ConflictingOptions: Mode, steps, knobs or names of calls are not those of the plan.
        PlanError: The plan cannot be read.
    """
    if options.plan is None:
        return None
    from opguard_core.plan.document import load_plan  # needs what `check_launcher` checked

    plan = load_plan(options.plan)
    plan.require(
        mode=options.mode,
        steps=options.steps,
        deterministic=options.deterministic,
        semantic=options.semantic,
        callsites=options.callsites,
    )
    return plan


def _recorded_steps(options: LaunchOptions, plan: Plan) -> int | None:
    return plan.recorded_steps if options.steps is None else options.steps[1] - options.steps[0]


def _transplants(path: Path) -> tuple[tuple[Transplant, ...], dict[str, Any]]:
    """What is to be put where, and the contract fact that labels the run: it is no run of its program alone.

    Raises:
        ConfigError: The file cannot be read, or names a slot that the kept file lacks.
        TraceFormatError: A kept file is not intact.
    """
    from opguard_core.trace.kept import read_kept

    asked, labels = load_transplants(path), []
    for one in asked:
        kept = read_kept(one.kept)
        labels.append({"boundary": one.boundary.as_dict(), "slots": slots_to_put(one, kept.slots), "kept": kept.seal})
    return asked, {"transplant": labels}


def _facts(options: LaunchOptions, cwd: Path, env: dict[str, str]) -> dict[str, Any]:
    """Contract facts that are the same for all ranks."""
    facts: dict[str, Any] = {"source.tree": tree_digest(cwd), "source.commit": git_commit(cwd)}
    facts.update({f"env.{name}": value for name, value in given(env).items()})
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
