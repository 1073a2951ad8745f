"""Find stored runs and comparisons by id or path. Standard library only: listing them must stay instant."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opguard_harness.answer.schema import checked
from opguard_harness.compare.sides import trace_folder
from opguard_harness.config import fresh_name, private_dir, runs_dir
from opguard_harness.errors import SideNotFound

ANSWER_FILE = "answer.json"


@dataclass(frozen=True)
class StoredRun:
    """One folder of the state folder. ``kind``: "compare" or "run"; ``verdict`` is empty for single runs."""

    id: str
    kind: str
    path: Path
    verdict: str
    mode: str


def stored_runs() -> list[StoredRun]:
    """What the state folder holds, newest first; unfinished and failed folders are left out."""
    if not runs_dir().is_dir():
        return []
    found = (_stored(path) for path in sorted(runs_dir().iterdir(), reverse=True) if not path.name.startswith("."))
    return [run for run in found if run is not None]


def new_comparison() -> Path:
    """A name for a new comparison; not created."""
    return private_dir(runs_dir()) / fresh_name("compare")


def trace_of(name: str) -> Path:
    """The trace directory of a run named by id or path.

    Raises:
        SideNotFound: There is no such run, or it is a comparison, which has two traces.
    """
    path = _path(name)
    trace = trace_folder(path)
    if trace is None:
        both = (path / ANSWER_FILE).exists()
        hint = f"Name {path / 'reference'} or {path / 'suspect'}." if both else "`opguard-harness call list_runs` lists them."
        raise SideNotFound(f"{name!r} is {'a comparison of two runs' if both else 'no run and no trace directory'}.", hint=hint)
    return trace


def answer_of(name: str) -> dict[str, Any]:
    """The stored answer of a comparison named by id or path.

    Raises:
        SideNotFound: There is no such comparison, or its answer cannot be read.
    """
    path = _path(name) / ANSWER_FILE
    try:
        answer = json.loads(path.read_text("ascii"))
    except (OSError, ValueError) as error:
        hint = "`opguard-harness call list_runs` lists them."
        raise SideNotFound(f"{name!r} is no comparison: {path} cannot be read.", hint=hint) from error
    return checked(answer)


def _path(name: str) -> Path:
    """A folder by id (one word, below the state folder) or by path."""
    if name and "/" not in name and name not in (".", "..") and (runs_dir() / name).is_dir():
        return runs_dir() / name
    return Path(name).expanduser().absolute()


def _stored(path: Path) -> StoredRun | None:
    """What one folder is; None when it is neither a run nor a comparison."""
    try:
        answer = json.loads((path / ANSWER_FILE).read_text("ascii"))
        return StoredRun(path.name, "compare", path, str(answer["verdict"]), str(answer["mode"]))
    except (OSError, ValueError, LookupError, TypeError):
        pass_over = trace_folder(path) is None or path.name.rpartition(".failed")[1]
    if pass_over:
        return None
    try:
        mode = str(json.loads((path / "trace" / "manifest.json").read_bytes())["mode"])
    except (OSError, ValueError, LookupError, TypeError):
        mode = "unknown"
    return StoredRun(path.name, "run", path, "", mode)
