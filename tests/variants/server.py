"""Runs programs in children of a process that has imported torch already, bare or observed, and judges pairs of traces.

    python -m tests.variants.server < jobs > replies        (one JSON object a line; see `serve`)

A program starts as ``python train.py`` would start it: own folder, own argv, first entry of the path its folder, no module of
its name known. A program of several ranks gets the environment that torchrun gives, and one child a rank.
What differs from a real launch: modules that the programs import from installed packages are imported already.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from tests.variants.child import judge, train

POLL_S = 0.01
LOADED = (
    "torch",
    "torch._dynamo",
    "torch.distributed",
    "torch.utils.data",
    "torch.utils.checkpoint",
    "opguard_core.capture.session",
    "opguard_core.certify.answer",
    "opguard_core.certify.compare",
)


def serve() -> None:
    """Answer jobs until there are none.

    A job is ``{"do": "train", "folder", "launch", "trace" or null, "report", "ranks", "timeout_s", "preload": [...]}`` or
    ``{"do": "judge", "reference", "suspect", "report", "timeout_s"}``. The reply is ``{"codes": [...]}``, one exit code a child
    (negative: signal; None: it ran too long and was killed).
    """
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever prints here does not mix with replies
    for name in LOADED:
        importlib.import_module(name)
    from opguard_core.fingerprint import native

    native.load()
    for line in sys.stdin:
        job = json.loads(line)
        for name in job.get("preload", ()):
            importlib.import_module(name)
        replies.write(json.dumps({"codes": _do(job)}) + "\n")
        replies.flush()


def _do(job: dict[str, Any]) -> list[int | None]:
    if job["do"] == "judge":
        return _wait([_fork(judge, job)], job["timeout_s"])
    ranks = job["ranks"]
    if job["trace"] is not None:
        Path(job["trace"]).mkdir(mode=0o700, parents=True)
    port = _free_port()
    codes = _wait([_fork(train, job, _environment(rank, ranks, port), rank) for rank in range(ranks)], job["timeout_s"])
    if job["trace"] is not None:
        _wait([_fork(_manifest, job, codes[0])], job["timeout_s"])
    return codes


def _environment(rank: int, ranks: int, port: int) -> dict[str, str]:
    if ranks == 1:
        return {}
    values = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": ranks,
        "LOCAL_WORLD_SIZE": ranks,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
    return {name: str(value) for name, value in values.items()}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _fork(function: Any, *args: Any) -> int:
    pid = os.fork()
    if pid == 0:
        os.setsid()
        code = 97
        try:
            code = function(*args)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    return pid


def _wait(pids: list[int], timeout_s: float) -> list[int | None]:
    """Wait for children; those that run too long are killed with all that they started."""
    codes: dict[int, int | None] = {}
    deadline = time.monotonic() + timeout_s
    while len(codes) < len(pids):
        for pid in pids:
            if pid not in codes:
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    codes[pid] = os.waitstatus_to_exitcode(status)
        if len(codes) < len(pids) and time.monotonic() > deadline:
            for pid in set(pids) - set(codes):
                os.killpg(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                codes[pid] = None
        time.sleep(POLL_S)
    return [codes[pid] for pid in pids]


def _manifest(job: dict[str, Any], code: int | None) -> int:
    from opguard_core.launch.folder import captured_ranks
    from opguard_core.trace.manifest import RunManifest, write_manifest

    trace, folder = Path(job["trace"]), job["folder"]
    ended = {"code": code if code is not None and code >= 0 else None, "signal": -code if code is not None and code < 0 else None}
    manifest = RunManifest(
        argv=job["launch"], cwd=folder, user_root=folder, mode=job["mode"], exit=ended, ranks=captured_ranks(trace), complete=True
    )
    manifest.python = ".".join(map(str, sys.version_info[:3]))
    manifest.extra.update(plan_hash="", deterministic=False)
    write_manifest(trace, manifest)
    return 0


if __name__ == "__main__":
    serve()
