"""Stored results of long ago, made of as few files as they need, and `prune` as a shell would call it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from opguard_harness.cli.app import dispatch
from tests.support.answers import answer

FIRST, SECOND, THIRD, FOURTH = (f"{kind}-00000000000{number}" for number, kind in enumerate(("compare", "run", "confirm", "compare"), 1))


def aged(*paths: Path) -> None:
    """As if nothing had happened to them since 1970, nor to what is below them."""
    for path in paths:
        for item in (*path.rglob("*"), path):
            os.utime(item, (1, 1), follow_symlinks=False)


def compared(state: Path, name: str, *, reference: object = "/elsewhere/trace", suspect: object = "/elsewhere/other", **more: Any) -> str:
    """A comparison of two traces."""
    folder = state / "runs" / name
    folder.mkdir()
    told = answer("identical", trace={"reference": str(reference), "suspect": str(suspect)}, **more)
    (folder / "answer.json").write_text(json.dumps(told))
    aged(folder)
    return name


def ordered(state: Path, name: str, *, tool: str = "compare", case: str = "", **arguments: Any) -> Path:
    """The folder of a job with what was asked for."""
    folder = state / "jobs" / name
    folder.mkdir(parents=True)
    facts = {"job": name, "tool": tool, "request": "", "code": "", "settings": "", "created": "", "case": case}
    (folder / "spec.json").write_text(json.dumps({"format": 1, **facts, "arguments": arguments}))
    (folder / "spec.json").chmod(0o600)
    (folder / "log.txt").write_text("said")
    aged(folder)
    return folder


def prune(*words: str) -> tuple[dict[str, str], dict[str, Any]]:
    """Why each result stays, and the whole document."""
    found = json.loads(dispatch(["prune", "--json", *words]).text)
    return {row["id"]: row["why"] for row in found["results"]}, found


def stored(state: Path) -> list[str]:
    """Names of all folders of results and jobs."""
    return sorted(path.name for part in ("runs", "jobs") if (state / part).is_dir() for path in (state / part).iterdir() if path.is_dir())
