"""One run of a program under live capture, in forked children of a process that has torch loaded.

The program's folder is copied, becomes the working folder, and `train.py` runs as `__main__`; the child leaves by `os._exit`.
"""

from __future__ import annotations

import ast
import gc
import json
import os
import random
import runpy
import shutil
import signal
import socket
import sys
import time
import traceback
import types
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch._dynamo
import torch.distributed
import torch.nn.parallel
import torch.utils.checkpoint
import torch.utils.data

from opguard_core.capture import session as capture
from opguard_core.plan.config import RunConfig
from opguard_core.trace.manifest import RunManifest, write_manifest
from opguard_core.trace.sources import read_source
from tests.faults.injection.below import Injector
from tests.faults.injection.faults import Fault
from tests.faults.injection.programs import Program
from tests.faults.injection.witness import Witness

TIMEOUT_S = 180
SEED = 20

_parsed: dict[str, ast.Module] = {}
"""Sources that capture has taken apart in earlier runs: most of what a short run costs, and children inherit it."""


@dataclass(frozen=True)
class Order:
    """What one run is to do.

    Attributes:
        program: What to run.
        out: Folder that the trace and the outcomes go to; made here.
        mode: Capture mode.
        fault: What to inject, if anything.
        rank: The rank to inject into.
        last_call: By rank, the number of the last call of an uninjected run.
        kill_at: Call at which rank ``rank`` kills itself.
        prepare: Called in each child before capture starts.
    """

    program: Program
    out: Path
    mode: str
    fault: Fault | None = None
    rank: int = 0
    last_call: tuple[int, ...] = ()
    kill_at: int = -1
    prepare: Callable[[], None] | None = None


def run(order: Order) -> list[dict[str, Any] | None]:
    """Run all ranks.

    Returns:
        Per rank what it wrote at its end; None for one that died.
    """
    order.out.mkdir(mode=0o700, parents=True)
    trace = order.out / "trace"
    trace.mkdir(mode=0o700)
    shutil.copytree(order.program.folder, order.out / "program", ignore=shutil.ignore_patterns("__pycache__"))
    port = _free_port() if order.program.world_size > 1 else 0
    children = [fork(lambda rank=rank: _rank(order, rank, port)) for rank in range(order.program.world_size)]
    wait(children)
    _remember_sources(trace / "sources")
    manifest = RunManifest(user_root=str(order.out / "program"), mode=order.mode, ranks=list(range(len(children))), complete=True)
    write_manifest(trace, manifest)
    outcomes = [order.out / f"outcome-{rank}.json" for rank in range(len(children))]
    return [json.loads(path.read_text()) if path.exists() else None for path in outcomes]


def in_fork(function: Callable[[], Any], out: Path) -> Any:
    """Run a function in a child and return its JSON-ready result; this process stays without threads of its own."""
    wait([fork(lambda: out.write_text(json.dumps(function())))])
    if not out.exists():
        raise RuntimeError(f"the child that should have written {out} died")
    return json.loads(out.read_text())


def fork(body: Callable[[], object]) -> int:
    """Run a function in a child, which ends with it; returns its process id."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        body()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def wait(children: list[int], timeout_s: float | None = TIMEOUT_S) -> None:
    """Wait for children; those that take too long are killed."""
    waiting, started = set(children), time.monotonic()
    while waiting:
        for pid in list(waiting):
            if os.waitpid(pid, os.WNOHANG)[0]:
                waiting.discard(pid)
        if timeout_s is not None and time.monotonic() - started > timeout_s:
            for pid in waiting:
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def _rank(order: Order, rank: int, port: int) -> None:
    gc.freeze()
    folder, world_size = order.out / "program", order.program.world_size
    if world_size > 1:
        os.environ |= {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(world_size),
            "LOCAL_WORLD_SIZE": str(world_size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
    os.chdir(folder)
    printed = order.out / f"printed-{rank}"
    with printed.open("wb") as file:
        os.dup2(file.fileno(), 1)
    with (order.out / f"errors-{rank}").open("wb") as file:
        os.dup2(file.fileno(), 2)
    witness = Witness(str(folder))
    injector = Injector(
        order.fault if rank == order.rank else None,
        last_call=order.last_call[rank] if order.last_call else -1,
        on_last=witness.last,
        on_read=witness.read,
        at_call=(lambda call: _die(call, order.kill_at)) if order.kill_at >= 0 and rank == order.rank else None,
    )
    # A program that seeds nothing is seeded by the clock once, in the parent: then other campaigns could not repeat its runs.
    random.seed(SEED)
    np.random.seed(SEED)
    torch.manual_seed(SEED)
    _inherit_sources()
    if order.prepare is not None:
        order.prepare()
    injector.install()
    witness.install()
    config = RunConfig(
        run_dir=order.out / "trace",
        rank=rank,
        world_size=world_size,
        local_rank=rank,
        user_root=folder,
        mode=order.mode,
        argv=("train.py",),
    )
    session = capture.start(config)
    injector.next_seq = lambda: session.context.outbox.next_seq
    ended, error = "exit", ""
    try:
        _main(folder, order.program.argv)
    except SystemExit:
        pass
    except BaseException as raised:
        ended, error = "exception", f"{type(raised).__name__}: {raised}"
        traceback.print_exc()
    session.stop(ended)
    sys.stdout.flush()
    facts = {
        "ended": ended,
        "error": error,
        "calls": injector.calls,
        "placed": injector.placed,
        "effect": injector.effect,
        "problem": injector.problem,
        "testimony": witness.testimony(printed.read_bytes()),
        "sites": [asdict(site) for site in injector.sites] if order.fault is None else [],
    }
    (order.out / f"outcome-{rank}.json").write_text(json.dumps(facts))


def _remember_sources(folder: Path) -> None:
    for path in folder.glob("*.py.gz"):
        text = read_source(folder, path.name.partition(".")[0])
        if text not in _parsed:
            _parsed[text] = ast.parse(text)


def _inherit_sources() -> None:
    parse = ast.parse

    def once(source: Any, *args: Any, **kwargs: Any) -> Any:
        known = _parsed.get(source) if isinstance(source, str) and not args and not kwargs else None
        return parse(source, *args, **kwargs) if known is None else known

    ast.parse = once  # type: ignore[assignment]


def _main(folder: Path, argv: tuple[str, ...]) -> None:
    sys.path[0] = str(folder)
    if argv[0] == "-m":
        sys.argv = list(argv[1:])
        runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
        return
    path = folder / argv[0]
    sys.argv = [str(path), *argv[1:]]
    module = types.ModuleType("__main__")
    module.__file__ = str(path)
    sys.modules["__main__"] = module
    exec(compile(path.read_text(), str(path), "exec"), module.__dict__)


def _die(call: int, at: int) -> None:
    if call == at:
        os.kill(os.getpid(), signal.SIGKILL)


__all__ = ["Order", "fork", "in_fork", "run", "wait"]
