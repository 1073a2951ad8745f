"""What a forked child does: run one program to its end, bare or observed, or judge one pair of traces."""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import runpy
import sys
import threading
import traceback
from pathlib import Path
from typing import Any


def train(job: dict[str, Any], environment: dict[str, str], rank: int) -> int:
    """Run the program of a job as one rank; its output and what it updated go into files beside ``report``.

    Returns:
        The exit code it would have had.
    """
    from opguard_core.engines.shims import OWN_FILENAME

    folder, report = Path(job["folder"]), Path(job["report"])
    _redirect(report, rank)
    atexit._clear()  # those of the server
    os.environ.update(environment, PYTHONDONTWRITEBYTECODE="1")
    sys.dont_write_bytecode = True
    os.chdir(folder)
    words = job["launch"][1:] if job["launch"][0] == "python" else job["launch"][3:]  # torchrun --nproc-per-node N
    module = words[1] if words[0] == "-m" else ""
    sys.argv = words[1:] if module else words
    sys.path.insert(0, str(folder))
    own = {path.stem for path in folder.glob("*.py")} | {path.name for path in folder.iterdir() if path.is_dir()}
    for name in [name for name in sys.modules if name.partition(".")[0] in own]:
        del sys.modules[name]
    updates: list[str] = []
    session = _observe(job, rank) if job["trace"] is not None else None
    if session is None:
        _watch_updates(updates)
    _run.__code__ = _run.__code__.replace(co_filename=OWN_FILENAME)  # no frame of ours in what is recorded
    code = _run(module, str(folder / words[0]))
    threading._shutdown()  # type: ignore[attr-defined]
    if session is not None:
        session.stop("exit" if code == 0 else "exception")
    report.with_suffix(f".{rank}.json").write_text(json.dumps(updates))
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def _run(module: str, script: str) -> int:
    """The program as ``__main__``."""
    try:
        if module:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(script, run_name="__main__")
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _redirect(report: Path, rank: int) -> None:
    for descriptor, name in ((1, "out"), (2, "err")):
        opened = os.open(report.with_suffix(f".{rank}.{name}"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.stdout = open(1, "w", closefd=False)  # the server's own object may hold what it has not written yet
    sys.stderr = open(2, "w", closefd=False)


def _observe(job: dict[str, Any], rank: int) -> Any:
    from opguard_core.capture.session import start
    from opguard_core.plan.config import RunConfig

    return start(
        RunConfig(
            run_dir=Path(job["trace"]),
            rank=rank,
            world_size=job["ranks"],
            local_rank=rank,
            user_root=Path(job["folder"]),
            mode=job["mode"],
            argv=tuple(job["launch"]),
        )
    )


def _watch_updates(updates: list[str]) -> None:
    """After each optimizer step: a digest of all its parameters, whatever they are called and in whatever order they come."""
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    def digest(tensor: torch.Tensor) -> bytes:
        flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
        return hashlib.blake2b(flat.numpy().tobytes(), digest_size=16).digest()

    def stepped(optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
        parts = sorted(digest(parameter) for group in optimizer.param_groups for parameter in group["params"])
        updates.append(hashlib.blake2b(b"".join(parts), digest_size=16).hexdigest())

    register_optimizer_step_post_hook(stepped)


def judge(job: dict[str, Any]) -> int:
    """Certify a pair of stored traces; the answer goes to the file ``report``."""
    from opguard_core.certify.answer import to_dict
    from opguard_core.certify.compare import compare
    from opguard_core.trace.reader import Run

    answer = to_dict(compare(Run.open(job["reference"]), Run.open(job["suspect"])))
    Path(job["report"]).write_text(json.dumps(answer))
    return 0
