"""Look at a command line before it is started: can a capture start in it at all?

Only certain obstacles are refused here; everything else is told from what the processes said of themselves, see
``outcome``.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from opguard_core.errors import ConflictingOptions, DependencyMissing, LaunchFailed, NothingCaptured
from opguard_core.launch.startup import bootstrap
from opguard_core.plan.support import DEPENDENCIES, install_line, untested_pair

_PYTHON_NAME = re.compile(r"(python|pypy)[\d.]*t?$")
_SHEBANG_BYTES = 4096


def check(argv: Sequence[str], env: Mapping[str, str]) -> str:
    """Refuse a command line in which no capture can start.

    Args:
        argv: Program and arguments.
        env: Environment of the program, before ours is added.

    Returns:
        A warning to print, or "".

    Raises:
        LaunchFailed: There is no such program.
        NothingCaptured: Its interpreter is told to ignore the environment.
        DependencyMissing: Its interpreter is ours and lacks a package.
        ConflictingOptions: We run inside an observed run already.
    """
    if env.get(bootstrap.ENV_RUN):
        raise ConflictingOptions(
            f"This is already inside an observed run ({env[bootstrap.ENV_RUN]}).", hint="Observe the outer or the inner program, not both."
        )
    program = shutil.which(argv[0], path=env.get("PATH", os.defpath))
    if program is None:
        raise LaunchFailed(f"There is no program {argv[0]!r}.", hint="Check its spelling, PATH and that it may be executed.")
    words = interpreter_words(program, argv)
    if words is None:
        return ""
    ignoring = bootstrap.ignoring_flags(bootstrap.command_line(words)[2])
    if ignoring:
        raise NothingCaptured(
            f"The program is started with {' and '.join(ignoring)}, so no capture can start in it.",
            hint="Leave the option out; capture starts through PYTHONPATH and the site module.",
        )
    if not _is_ours(words[0]):
        return ""
    missing = [name for name in DEPENDENCIES if importlib.util.find_spec(name) is None]
    if missing:
        raise DependencyMissing(
            f"The training Python {words[0]} lacks {', '.join(missing)}, which capture needs.",
            hint=f"Run: {install_line(words[0], missing)}",
        )
    try:
        return untested_pair(platform.python_version(), importlib.metadata.version("torch"))
    except importlib.metadata.PackageNotFoundError:
        return ""


def check_launcher() -> None:
    """Refuse to go on where the launcher's own Python cannot write manifests.

    Raises:
        DependencyMissing: It lacks orjson.
    """
    if importlib.util.find_spec("orjson") is None:
        raise DependencyMissing(
            f"The Python that runs the launcher, {sys.executable}, lacks orjson.", hint=f"Run: {install_line(sys.executable, ['orjson'])}"
        )


def interpreter_words(program: str, argv: Sequence[str]) -> list[str] | None:
    """The command line of the Python that ``program`` is or names in its first line; None if it is neither.

    Args:
        program: Path of ``argv[0]``.
        argv: Program and arguments.
    """
    if _PYTHON_NAME.match(Path(program).name):
        return [program, *argv[1:]]
    try:
        with Path(program).open("rb") as file:
            lines = file.read(_SHEBANG_BYTES).decode("utf-8", "replace").splitlines()
    except OSError:
        return None
    if not lines or not lines[0].startswith("#!"):
        return None
    # Where the interpreter's path is too long for the kernel, pip writes a shell script whose second line starts Python.
    started = lines[0][2:].split(None, 1) if "/sh" not in lines[0] or len(lines) < 2 else _second_line(lines[1])
    if started and Path(started[0]).name == "env":
        started = started[1].split() if len(started) > 1 else []
        found = shutil.which(started[0]) if started else None
        started = [found, *started[1:]] if found else []
    if not started or not _PYTHON_NAME.match(Path(started[0]).name):
        return None
    return [*started, program, *argv[1:]]


def _second_line(line: str) -> list[str]:
    if not line.startswith("'''exec'"):
        return []
    try:
        return shlex.split(line.removeprefix("'''exec'").replace('"$0"', "").replace('"$@"', ""))
    except ValueError:
        return []


def _is_ours(python: str) -> bool:
    """Whether this is the interpreter and environment that runs us; links are kept, since they tell environments apart."""
    theirs, ours = Path(python).absolute(), Path(sys.executable).absolute()
    return theirs.parent == ours.parent and theirs.resolve() == ours.resolve()
