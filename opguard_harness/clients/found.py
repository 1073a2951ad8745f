"""How a client can start this installation: by name if its PATH leads here, else by path.

A client is seldom started in the activated environment of the shell that runs `install`, so that environment's folder does not
count as the client's PATH.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from opguard_harness.clients.entry import COMMAND, Launch


def client_path(environment: Mapping[str, str]) -> str:
    """PATH as a client outside every virtual environment has it."""
    activated = {environment[name] for name in ("VIRTUAL_ENV", "CONDA_PREFIX") if environment.get(name)}
    if sys.prefix != sys.base_prefix:
        activated.add(sys.prefix)
    folders = {_real(Path(prefix) / "bin") for prefix in activated}
    entries = (Path(entry) for entry in environment.get("PATH", os.defpath).split(os.pathsep))
    return os.pathsep.join(str(entry) for entry in entries if entry.is_absolute() and _real(entry) not in folders)


def script() -> Path | None:
    """The console script of this installation; None if it has none (a checkout that is run as a module)."""
    folders = [Path(sys.executable).parent, Path(sysconfig.get_path("scripts"))]
    user = sysconfig.get_preferred_scheme("user")
    folders.append(Path(sysconfig.get_path("scripts", user)))
    for folder in folders:
        path = folder / COMMAND
        if path.is_file() and os.access(path, os.X_OK):
            return path.absolute()
    return None


@dataclass(frozen=True)
class Found:
    """How a client starts this installation.

    Attributes:
        launch: The words of the entry.
        note: What a person should know about them; empty if they are as usual.
        startable: Whether there is anything to start.
    """

    launch: Launch
    note: str = ""
    startable: bool = True


def find_launch(environment: Mapping[str, str]) -> Found:
    """By name where a client's PATH leads to this installation, else by path."""
    ours = script()
    named = shutil.which(COMMAND, path=client_path(environment))
    if ours is None:
        return Found(Launch(), f"This installation has no script {COMMAND} that a client could start.", startable=False)
    if named is not None and _real(Path(named)) == _real(ours):
        return Found(Launch())
    other = f"is another installation ({named})" if named else "is not on the PATH of programs outside this environment"
    return Found(Launch((str(ours),)), f"{COMMAND} {other}, so the entry has its path, which is good on this machine only.")


def _real(path: Path) -> str:
    return os.path.realpath(path)
