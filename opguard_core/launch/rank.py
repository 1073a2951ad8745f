"""Inside a process of the program, after it has imported torch: find out who it is, start capture, watch for its end.

Called by the bootstrap on the thread that imported torch, while that import statement still holds torch's import lock;
so nothing here may wait for another thread that imports torch.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from opguard_core.determinism.apply import apply_in_rank
from opguard_core.errors import DependencyMissing, OpGuardError
from opguard_core.launch import spawned
from opguard_core.launch.children import what_forked
from opguard_core.launch.ending import Ending
from opguard_core.launch.quiet import quiet_warnings
from opguard_core.launch.startup import bootstrap
from opguard_core.plan.config import RunConfig, rank_folder
from opguard_core.plan.keeping import parse_keep, parse_transplants
from opguard_core.plan.orders import Orders, read_orders
from opguard_core.plan.support import DEPENDENCIES, install_line

if TYPE_CHECKING:
    from opguard_core.capture.session import Session

Facts = dict[str, Any]


def begin(run: str, role: str, facts: Facts) -> None:
    """Do what the role asks for.

    Args:
        run: The run folder.
        role: "rank", "program" or "spawned", see the bootstrap's ``decide``.
        facts: What the bootstrap recorded of this process; grows with what is found out.

    Raises:
        OpGuardError: Capture cannot start; the bootstrap ends the process.
    """
    if role == "rank":
        _start(Path(run), facts, *facts["declared"])
    elif role == "program":
        if _start(Path(run), facts, 0, 1, 0):
            spawned.on_join(_late_rank(run, facts))
            if facts.get("shim") and (why := spawned.preload_children(facts["shim"])):
                tell(run, facts, ranks_without_shim=why)
    elif not spawned.on_join(_join(run, facts)):
        tell(run, facts, state="left", role="left", reason="no-process-group-support")


def tell(run: str | Path, facts: Facts, **more: object) -> None:
    """Add to what the launcher knows of this process."""
    facts.update(more)
    bootstrap.write_record(str(run), facts)


def _start(run: Path, facts: Facts, rank: int, world_size: int, local_rank: int) -> bool:
    """Start capture as this rank; False if another process is that rank already."""
    orders = read_orders(run)
    _check_dependencies()
    folder, owner = claim(run, rank, ancestor=facts["ancestor"])
    if folder is None:
        reason = "second-program" if facts["role"] == "program" else "rank-captured-before"
        tell(run, facts, state="left", role="left", reason=reason, rank=rank, other_pid=owner)
        return False
    with quiet_warnings():
        # Loaded here: it needs the packages that were just checked.
        from opguard_core.capture import session as capture

        if orders.deterministic:
            orders.facts["knobs.rank"] = apply_in_rank()
        session = capture.start(_config(run, orders, rank, world_size, local_rank, folder))
    tell(run, facts, state="capturing", rank=rank, world_size=world_size, folder=folder, torch=str(sys.modules["torch"].__version__))
    ending = Ending(session, ended=_ended(run, facts, session), forked=_forked(run, facts))
    ending.watch()
    session.ends_by(functools.partial(_end, run, facts, ending))
    if orders.end_after is not None:
        from opguard_core.launch.early import EarlyEnd

        EarlyEnd(run, orders, session, stop=ending.finish_recording, tell=functools.partial(tell, run, facts)).watch()
    return True


def _config(run: Path, orders: Orders, rank: int, world_size: int, local_rank: int, folder: str) -> RunConfig:
    return RunConfig(
        run_dir=run,
        rank=rank,
        world_size=world_size,
        local_rank=local_rank,
        user_root=Path(orders.user_root),
        mode=orders.mode,
        steps=orders.steps,
        step_offset=orders.step_offset,
        deterministic=orders.deterministic,
        buffer_bytes=orders.buffer_bytes,
        plan_hash=orders.plan_hash,
        argv=tuple(orders.argv),
        folder=folder,
        facts=orders.facts,
        keep=None if orders.keep is None else parse_keep(orders.keep),
        engine=orders.engine,
        compiled=orders.compiled,
        semantic=orders.semantic,
        callsites=orders.callsites,
        transplants=() if orders.transplant is None else parse_transplants(orders.transplant),
    )


def claim(run: Path, rank: int, *, ancestor: int) -> tuple[str | None, int]:
    """Become the one process that writes this rank's trace.

    A rank that a captured program started itself (it holds rank 0 by then) gets a folder aside; the launcher sorts that
    out after the end.

    Args:
        run: The run folder.
        rank: Global rank.
        ancestor: Process id of the captured program that this process descends from, or 0.

    Returns:
        (folder, 0), or (None, process id of the one who has it).
    """
    for folder in (rank_folder(rank), spawned.aside_folder(rank)):
        path = run / bootstrap.PROCESSES_NAME / f"claim-{folder}"
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        except FileExistsError:
            owner = int(path.read_text("ascii") or 0)
            if owner != ancestor:
                return None, owner
            continue
        try:
            os.write(descriptor, b"%d" % os.getpid())
        finally:
            os.close(descriptor)
        return folder, 0
    return None, ancestor


def _check_dependencies() -> None:
    missing = [name for name in DEPENDENCIES if importlib.util.find_spec(name) is None]
    if missing:
        raise DependencyMissing(
            f"The training Python {sys.executable} lacks {', '.join(missing)}, which capture needs.",
            hint=f"Run: {install_line(sys.executable, missing)}",
        )


def _late_rank(run: str, facts: Facts) -> Callable[[int, int], None]:
    """The captured single program, or a fork of it, joins a process group."""

    def joined(rank: int, world_size: int) -> None:
        if os.getpid() != facts["pid"]:
            child = {"pid": os.getpid(), "ppid": os.getppid(), "argv0": facts["argv0"], "role": "left"}
            tell(run, child, state="left", reason="uncaptured-rank", rank=rank, world_size=world_size)
            return
        if world_size > 1:
            tell(run, facts, joined_rank=rank, joined_world_size=world_size)
        # Its children inherit the RANK that it may have set for itself; they are no ranks of their own.
        os.environ[bootstrap.ENV_INSIDE] = f"rank:{os.getpid()}"

    return joined


def _join(run: str, facts: Facts) -> Callable[[int, int], None]:
    """A multiprocessing child joins a process group and so is a rank."""

    def joined(rank: int, world_size: int) -> None:
        mine = facts if os.getpid() == facts["pid"] else {**facts, "pid": os.getpid(), "ppid": os.getppid(), "reason": "forked-child"}
        if facts.get("folder"):
            if mine is not facts:
                tell(run, {**mine, "folder": ""}, state="left", role="left", reason="uncaptured-rank", rank=rank, world_size=world_size)
            return
        try:
            _start(Path(run), mine, rank, world_size, rank)
        except Exception as error:  # noqa: BLE001 - the tool's edge, as in the bootstrap
            bootstrap.give_up(run, mine, error)

    return joined


def _ended(run: Path, facts: Facts, session: Session) -> Callable[[str, str], None]:
    def ended(reason: str, problem: str) -> None:
        tell(run, facts, state="ended", ended=reason, problem=problem, not_transplanted=session.not_transplanted)

    return ended


def _end(run: Path, facts: Facts, ending: Ending, error: OpGuardError) -> NoReturn:
    """What the run is for cannot be done: close the trace and end the process before it goes on."""
    ending.finish_recording()
    bootstrap.give_up(str(run), facts, error)
    raise AssertionError("the process has ended")


def _forked(run: Path, facts: Facts) -> Callable[[], None]:
    def forked() -> None:
        argv0, reason = what_forked(sys._getframe(1), facts["argv0"])
        child = {"pid": os.getpid(), "ppid": os.getppid(), "argv0": argv0, "role": "left", "reason": reason, "state": "left"}
        bootstrap.write_record(str(run), child)

    return forked
