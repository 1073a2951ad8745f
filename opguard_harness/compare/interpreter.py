"""Find the training's interpreter, ask it what it has, and put it into command lines."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from opguard_core.errors import DependencyMissing, ForeignPackage, LaunchFailed
from opguard_core.plan.support import DEPENDENCIES, untested_pair
from opguard_harness.errors import NoTrainingPython

NEEDED = ("torch", *DEPENDENCIES)
PROBE_TIMEOUT_S = 120.0
_PYTHON_WORDS = ("python", "python3")
_SCRIPT_WORDS = ("torchrun", "accelerate")
# Programs that run the rest of their command line; behind them the interpreter's name still means the training's.
_WRAPPERS = ("env", "nice", "ionice", "nohup", "numactl", "setsid", "stdbuf", "taskset", "time")


@dataclass(frozen=True)
class Interpreter:
    """One training Python and what it said of itself (see ``doctor.probe.facts``)."""

    path: Path
    facts: dict[str, Any]

    @property
    def missing(self) -> list[str]:
        """Packages that capture needs and this interpreter lacks."""
        return [name for name in NEEDED if self.facts["packages"].get(name) is None]

    @property
    def install_line(self) -> str:
        """The exact command that installs what is missing; empty when nothing is."""
        wanted = [f"{name}>={DEPENDENCIES[name]}" if name in DEPENDENCIES else name for name in self.missing]
        return shlex.join([str(self.path), "-m", "pip", "install", *wanted]) if wanted else ""

    def untested(self) -> str:
        """What of this pair of Python and torch was never tested, in one sentence; empty when it was."""
        return untested_pair(str(self.facts["version"]), str(self.facts["packages"].get("torch")))


def probe(path: Path, env: Mapping[str, str] | None = None) -> Interpreter:
    """Ask one interpreter for its facts; costs one interpreter start, imports no package.

    Args:
        path: The interpreter; symbolic links are kept, since a virtual environment is found through them.
        env: Environment of the training; None for the harness's own.

    Raises:
        NoTrainingPython: It is not there, does not start, or is not a Python from 3.8.
    """
    source = (resources.files("opguard_harness.doctor") / "probe.py").read_text("ascii")
    hint = "Name the training's interpreter as `python` (in a shell --python PATH); `doctor` checks it."
    try:
        done = subprocess.run(
            [str(path), "-c", source],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
            timeout=PROBE_TIMEOUT_S,
            env=None if env is None else dict(env),
            check=False,
        )
        facts = json.loads(done.stdout.strip().splitlines()[-1])
        return Interpreter(path, {**facts, "packages": dict(facts["packages"])})
    except OSError as error:
        raise NoTrainingPython(f"{path} cannot be started: {error.strerror}.", hint=hint) from error
    except subprocess.TimeoutExpired as error:
        raise NoTrainingPython(f"{path} did not answer within {PROBE_TIMEOUT_S:.0f} s.", hint=hint) from error
    except (ValueError, LookupError, TypeError) as error:
        said = (done.stderr.strip().splitlines() or ["nothing"])[-1][:300]
        raise NoTrainingPython(f"{path} is not a Python that can tell its version (it said: {said}).", hint=hint) from error


def find(wanted: Path | None, env: Mapping[str, str] | None = None) -> Interpreter:
    """The interpreter to train with: the one named, else the first usable of those a user would mean.

    Candidates without ``--python`` are ``python`` and ``python3`` on PATH, then the interpreter that runs the harness.

    Raises:
        NoTrainingPython: The named one does not start, or there is none at all.
        DependencyMissing: It lacks a package; the hint is the exact install line.
        ForeignPackage: Another distribution installed packages of our name there.
    """
    if wanted is not None:
        return usable(probe(named(wanted), env))
    first: Interpreter | None = None
    for candidate in _candidates():
        try:
            found = probe(candidate, env)
        except NoTrainingPython:
            continue  # a broken `python` on PATH was not asked for by name
        if not found.missing:
            return usable(found)
        first = first or found
    if first is None:
        raise NoTrainingPython("There is no Python on PATH to train with.")
    return usable(first)


def named(wanted: Path) -> Path:
    """The absolute path of an interpreter given as a path or as a name on PATH, links kept.

    Raises:
        NoTrainingPython: There is no such program.
    """
    found = shutil.which(str(wanted.expanduser()))
    if found is None:
        raise NoTrainingPython(f"There is no program {str(wanted)!r} to train with.")
    return Path(os.path.abspath(found))  # noqa: PTH100 - Path.resolve would follow the link out of the virtual environment


def usable(interpreter: Interpreter) -> Interpreter:
    """Return the interpreter if capture can start in it.

    Raises:
        DependencyMissing: It lacks a package.
        ForeignPackage: Another distribution installed packages of our name there.
    """
    refuse_foreign(interpreter.facts["foreign"], str(interpreter.path))
    if interpreter.missing:
        raise DependencyMissing(
            f"The training Python {interpreter.path} lacks {', '.join(interpreter.missing)}.",
            hint=f"Run: {interpreter.install_line}   (or name another interpreter: `python`, in a shell --python PATH)",
        )
    return interpreter


def refuse_foreign(owners: Sequence[Mapping[str, str]], python: str) -> None:
    """Refuse an environment in which another distribution owns our package names.

    Raises:
        ForeignPackage: There is one; the hint removes it and puts ours back.
    """
    for owner in owners:
        raise ForeignPackage(
            f"{owner['name']} {owner['version']} in {owner['folder']} installs packages and a script of the same names as OpGuard's.",
            hint=f"Run: {python} -m pip uninstall {owner['name']}   and, if OpGuard lived there too, install opguard-mcp again.",
        )


def command_line(argv: Sequence[str], interpreter: Path) -> list[str]:
    """Put the training's interpreter, and the launchers beside it, into a command line.

    Only the program position is looked at (behind wrappers such as ``env`` or ``taskset``: the first word that names an
    interpreter or launcher), so that an argument that happens to be "python" stays what it is.

    Raises:
        LaunchFailed: A launcher is neither beside the interpreter nor on PATH.
    """
    words = list(argv)
    names = (*_PYTHON_WORDS, *_SCRIPT_WORDS)
    index = 0
    if words[0] in _WRAPPERS:
        index = next((number for number, word in enumerate(words) if word in names), 0)
    if words[index] in _PYTHON_WORDS:
        words[index] = str(interpreter)
    elif words[index] in _SCRIPT_WORDS:
        words[index] = str(_launcher(words[index], interpreter))
    return words


def _launcher(name: str, interpreter: Path) -> Path:
    """A launcher script beside the interpreter, else on PATH."""
    beside = interpreter.parent / name
    if os.access(beside, os.X_OK):
        return beside
    found = shutil.which(name)
    if found is None:
        raise LaunchFailed(
            f"There is no {name} beside {interpreter} and none on PATH.",
            hint=f"Install the package that brings {name} into the training's environment, or name its interpreter as `python` "
            "(in a shell --python PATH).",
        )
    return Path(found)


def _candidates() -> Iterator[Path]:
    """Interpreters a user would mean by ``python``, best first, each once."""
    seen = set()
    for name in (*_PYTHON_WORDS, sys.executable):
        found = shutil.which(name) if name else None
        if found and found not in seen:
            seen.add(found)
            yield Path(os.path.abspath(found))  # noqa: PTH100 - links stay, see `named`
