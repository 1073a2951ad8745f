"""The run folder: made private before the program starts, cleared of everything that is not trace after it has ended."""

from __future__ import annotations

import ast
import os
import shutil
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opguard_core.errors import ConfigError, LaunchFailed
from opguard_core.launch.spawned import ASIDE
from opguard_core.launch.startup import bootstrap
from opguard_core.plan.config import BUFFER_BYTES, rank_folder
from opguard_core.plan.orders import PLAN_NAME, Orders
from opguard_core.trace.files import write_atomic

PRIVATE = 0o700
PARENT_FOLDER = "parent-of-ranks"
MAX_RECORD_BYTES = 1 << 20


@dataclass
class Process:
    """What one Python process of the program said of itself, all its record files together."""

    pid: int
    facts: dict[str, Any] = field(default_factory=dict)

    def get(self, key: str, default: Any = "") -> Any:
        """One fact."""
        return self.facts.get(key, default)


def prepare(out: Path) -> Path:
    """Make the run folder and claim it.

    Args:
        out: Absent or an empty folder.

    Returns:
        Its absolute path; 0700 and ours: of two runs that ask for it at once, one is refused.

    Raises:
        ConfigError: It is something else, or cannot be made.
        LaunchFailed: The disk is nearly full.
    """
    folder = out.expanduser().absolute()
    try:
        folder.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
        if folder.is_symlink() or any(folder.iterdir()):
            raise _in_use(folder)
        folder.chmod(PRIVATE)
        if stat.S_IMODE(folder.stat().st_mode) & 0o077 or folder.stat().st_uid != os.geteuid():
            raise ConfigError(
                f"--out {folder} cannot be made private to this user.",
                slug="out-not-private",
                hint="Name a folder on a file system with user permissions.",
            )
        free_bytes = shutil.disk_usage(folder).free
    except OSError as error:
        raise ConfigError(
            f"--out {folder} cannot be used: {error.strerror}.", slug="out-unusable", hint="Name a writable folder that is absent or empty."
        ) from error
    if free_bytes < 2 * BUFFER_BYTES:
        folder.rmdir()
        raise LaunchFailed(
            f"Only {free_bytes >> 20} MiB are free at {folder}; a run needs at least {2 * BUFFER_BYTES >> 20} MiB.",
            slug="space-short",
            hint="Free some space, or name a folder on another disk with --out.",
        )
    try:
        (folder / bootstrap.PROCESSES_NAME).mkdir(mode=PRIVATE)
    except FileExistsError as error:
        raise _in_use(folder) from error
    return folder


def _in_use(folder: Path) -> ConfigError:
    return ConfigError(f"--out {folder} is not an empty folder.", slug="out-in-use", hint="Name a folder that is absent or empty.")


def write_orders(run: Path, orders: Orders) -> None:
    """Arm the folder: from now on processes with the plan's nonce act."""
    write_atomic(run / PLAN_NAME, orders.to_json())


def environment(run: Path, orders: Orders, env: dict[str, str], bootstrap_folder: Path) -> dict[str, str]:
    """The program's environment: the given one, plus what starts our bootstrap."""
    ours = {bootstrap.ENV_RUN: str(run), bootstrap.ENV_NONCE: orders.nonce}
    path = env.get("PYTHONPATH", "")
    return {**env, **ours, "PYTHONPATH": os.pathsep.join([str(bootstrap_folder), *([path] if path else [])])}


def disarm(run: Path) -> None:
    """Remove what is not trace; a process that outlives the run finds no plan any more."""
    (run / PLAN_NAME).unlink(missing_ok=True)
    shutil.rmtree(run / bootstrap.PROCESSES_NAME, ignore_errors=True)


def read_processes(run: Path) -> list[Process]:
    """What the program's processes said, in the order in which they first said something."""
    records = []
    for path in (run / bootstrap.PROCESSES_NAME).glob("*.txt"):
        try:
            if path.is_symlink() or path.stat().st_size > MAX_RECORD_BYTES:
                continue  # not written by us
            record = ast.literal_eval(path.read_text("ascii"))
            records.append((int(record["t_ns"]), int(record["pid"]), dict(record)))
        except (OSError, ValueError, SyntaxError, KeyError, TypeError, RecursionError, MemoryError):
            continue  # half written by a process that was killed, or made up by the program
    processes: dict[int, Process] = {}
    for _, pid, record in sorted(records, key=lambda entry: entry[:2]):
        processes.setdefault(pid, Process(pid)).facts.update(record)
    return list(processes.values())


def settle_spawned(run: Path) -> bool:
    """Give ranks that a captured program started itself their own folders; that program's trace moves aside.

    Returns:
        Whether there were any.
    """
    aside = sorted(run.glob(f"{ASIDE}*"))
    if not aside:
        return False
    (run / rank_folder(0)).rename(run / PARENT_FOLDER)
    for folder in aside:
        folder.rename(run / rank_folder(int(folder.name.removeprefix(ASIDE))))
    return True


def captured_ranks(run: Path) -> list[int]:
    """Ranks that have a trace folder."""
    return sorted(int(folder.name.removeprefix("rank-")) for folder in run.glob("rank-[0-9]*") if folder.is_dir())
