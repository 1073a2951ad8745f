"""Folders and limits of the harness, each in one place.

State (runs, comparisons) and cache (checkouts, private copies) are private to the user: mode 0700.
"""

from __future__ import annotations

import os
import secrets
import time
from datetime import datetime, timezone
from pathlib import Path

from opguard_harness.errors import SystemRefused

GRACE_S = 10.0  # between SIGTERM and SIGKILL of a training's processes
HEARTBEAT_S = 5.0  # a job that nobody can ask gives a sign of life this often
MIN_FREE_BYTES = 256 * 1024 * 1024  # a comparison is refused below this much room for its traces
ANSWER_LIMIT_CHARS = 40_000  # hard cap on what one tool call returns
DEFAULT_ARGV = ("python", "train.py")


def state_dir() -> Path:
    """Where results live: ``$XDG_STATE_HOME/opguard``, by default ``~/.local/state/opguard``; not created here."""
    return _base("XDG_STATE_HOME", ".local/state") / "opguard"


def cache_dir() -> Path:
    """Where throw-away copies live: ``$XDG_CACHE_HOME/opguard``, by default ``~/.cache/opguard``; not created here."""
    return _base("XDG_CACHE_HOME", ".cache") / "opguard"


def runs_dir() -> Path:
    """Where comparisons and guarded runs without ``--out`` are kept."""
    return state_dir() / "runs"


def plans_dir() -> Path:
    """Where plans without a name of their own are kept."""
    return state_dir() / "plans"


def private_dir(path: Path) -> Path:
    """Create ``path`` (mode 0700) and its parents.

    Raises:
        SystemRefused: It exists and is not a folder of this user.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = path.stat()
    if status.st_uid != os.getuid():
        raise SystemRefused(f"{path} belongs to another user.", hint="Set XDG_STATE_HOME and XDG_CACHE_HOME to folders of your own.")
    if status.st_mode & 0o077:
        path.chmod(0o700)
    return path


def fresh_name(stem: str) -> str:
    """A name that sorts by time and does not collide: ``20260102-030405-stem-1a2b3c``."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{stem}-{secrets.token_hex(3)}"


def now() -> str:
    """The time, in UTC, so that texts sort by it."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _base(variable: str, below_home: str) -> Path:
    """An XDG base folder; the specification says that a relative value is to be ignored."""
    value = os.environ.get(variable, "")
    if value and Path(value).is_absolute():
        return Path(value)
    try:
        return Path.home() / below_home
    except RuntimeError as error:
        raise SystemRefused("This user has no home folder.", hint=f"Set {variable} to a folder of your own.") from error
