"""Which command lines a tool may start: a Python program of a root, by the training Python, torchrun or accelerate.

The first word has to be on the list that was fixed at the start; what then is run has to lie in a root. Code on the command
line, shells, ``env``, launchers told to start something that is no Python, and modules from elsewhere are refused.

What this cannot do: **a training is arbitrary code with its user's rights.** It may start a shell itself; arguments behind the
script are its own; a program that was put on the list is not looked into beyond its scripts. These rules keep a tool call
from starting something else than a training by mistake, or because a text said so. What a person runs with
`opguard-harness compare ... -- ARGV` is not checked.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from opguard_harness.access.launchers import MODULES, SCRIPTS, WITH_SUBCOMMAND, Launcher
from opguard_harness.access.untrusted import one_line
from opguard_harness.access.variables import WARNING_FILTER
from opguard_harness.errors import CommandRefused, UsageError

DEFAULT = ("python", "python3", "torchrun", "accelerate")
_NEVER = frozenset(
    "sh bash dash zsh ksh mksh ash fish csh tcsh rbash busybox toybox env sudo doas su xargs nohup ssh perl ruby node awk script "
    "expect socat eval exec pwsh".split()
)
_PYTHON = re.compile(r"pythonw?(\d+(\.\d+)*)?t?")
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
_X_OPTION = re.compile(
    r"(faulthandler|importtime(=\d)?|dev|utf8(=[01])?|tracemalloc(=\d+)?|no_debug_ranges|frozen_modules(=on|=off)?|int_max_str_digits=\d+|"
    r"showrefcount|cpu_count=\w+|gil=[01])"
)
# Under -E, -I and -S nothing can be observed, which the launch says better. Under -P a module of the folder is not what -m finds.
_PLAIN_LETTERS = "uBOvbqsdxtREIS"
_FOREIGN = frozenset(("site-packages", "dist-packages"))
_ENVIRONMENTS = (".venv", "venv", "env")
_HINT = 'Start a script or module of the program\'s folder, such as ["python", "train.py"]; other programs need --allow-command.'


_PYTHON_HINT = "Write `python` first, and name the interpreter in the argument `python`."


@dataclass(frozen=True)
class Program:
    """What a command line runs.

    Attributes:
        kind: "script" or "module".
        value: Its path or name.
        paths: Files and folders that options of a launcher name.
    """

    kind: str
    value: str
    paths: tuple[str, ...] = ()


def allowed(roots: Iterable[Path], extra: Iterable[str] = ()) -> tuple[str, ...]:
    """The list of a server: the usual names, the interpreters of environments in the roots, and what was added.

    Args:
        roots: Folders of the server.
        extra: ``--allow-command``: names or absolute paths.

    Raises:
        UsageError: What was added is a shell, or runs any other program.
    """
    added = tuple(extra)
    for program in added:
        if {PurePath(program).name, Path(program).resolve().name} & _NEVER:
            raise UsageError(f"--allow-command {program}: it would start anything at all.", hint="Name the one program that is needed.")
    found = [root / name / "bin" / python for root in roots for name in _ENVIRONMENTS for python in ("python", "python3")]
    return (*DEFAULT, *(str(path) for path in found if os.access(path, os.X_OK)), *added)


def check_command(
    words: Sequence[str],
    *,
    commands: Sequence[str],
    folders: Sequence[Path],
    inside: Callable[[Path], bool],
    module_folders: Sequence[Path] = (),
) -> None:
    """Refuse a command line that tools may not start.

    Args:
        words: The whole command line.
        commands: Programs that may stand first.
        folders: Working folders that it will run in, absolute.
        inside: Whether a path, links followed, lies in a root.
        module_folders: More folders that modules are looked for in.

    Raises:
        CommandRefused: The message says which word and why.
    """
    first = words[0]
    if first not in commands:
        known = ", ".join(sorted({program for program in commands if "/" not in program}))
        hint = _PYTHON_HINT if _PYTHON.fullmatch(PurePath(first).name) else _HINT
        raise CommandRefused(f"command: a tool starts {known} and nothing else, not {one_line(first, 60)!r}.", hint=hint)
    program = _program(words)
    if program is None:
        program = Program("script", next((word for word in words[1:] if word.endswith((".py", ".pyw"))), ""))
    for folder in folders:
        for named in program.paths:
            if not inside(_real(folder / named, named)):
                raise CommandRefused(f"command: {one_line(named, 80)!r} does not lie in a root.", hint="Name a path that lies in a root.")
        if program.kind == "module":
            _require_module(program.value, folder, inside, module_folders)
        elif program.value:
            _require_script(folder / program.value, program.value, inside)


def _program(words: Sequence[str]) -> Program | None:
    """What is run; None for a program that somebody put on the list and that is no interpreter or launcher."""
    name = PurePath(words[0]).name
    if _PYTHON.fullmatch(name):
        return _of_python(words, 1)
    if name in SCRIPTS:
        return _of_launcher(SCRIPTS[name], words, _behind_subcommand(name, words, 1))
    return None


def _of_python(words: Sequence[str], index: int) -> Program:
    """What an interpreter's command line runs."""
    while index < len(words):
        word = words[index]
        if word == "--check-hash-based-pycs":
            index += 2
            continue
        if word == "--":
            index += 1
            break
        if word == "-" or word.startswith("--"):
            raise _refused(word, "it is no script")
        if not word.startswith("-"):
            break
        module = _option_letters(words, index)
        if module is not None:
            value, behind = module
            if value in MODULES:
                return _of_launcher(MODULES[value], words, _behind_subcommand(value, words, behind))
            return Program("module", value)
        index += 2 if word[-1] in "WX" else 1
    if index >= len(words) or words[index] == "-":
        raise CommandRefused("command: it names no script, so it would read a program from somewhere else.", hint=_HINT)
    name = PurePath(words[index]).name
    if name in SCRIPTS:  # the launcher's own script, wherever it lies
        return _of_launcher(SCRIPTS[name], words, _behind_subcommand(name, words, index + 1))
    return Program("script", words[index])


def _option_letters(words: Sequence[str], index: int) -> tuple[str, int] | None:
    """Look at one word of short options; (module, index behind it) if it ends the options with ``-m``."""
    word = words[index]
    for place, letter in enumerate(word[1:], 2):
        value = word[place:] or (words[index + 1] if index + 1 < len(words) else "")
        if letter == "m":
            return value, index + 1 + (not word[place:])
        if letter in "WX":
            known = _X_OPTION if letter == "X" else WARNING_FILTER
            if not known.fullmatch(value):
                raise _refused(f"-{letter} {value}", "that setting is not known to be harmless")
            if word[place:] and value[-1] in "WX":
                raise _refused(word, "write the option and its value as two words")
            return None
        if letter not in _PLAIN_LETTERS:
            raise _refused(f"-{letter}", "code has to be in a script" if letter in "ci" else "that option of Python is not allowed")
    return None


def _of_launcher(launcher: Launcher, words: Sequence[str], index: int) -> Program:
    """What a launcher's command line runs; every word up to there has to be understood."""
    is_module = False
    paths: list[str] = []
    while index < len(words):
        word = words[index]
        if word == "--":
            index += 1
            break
        if not word.startswith("-"):
            break
        name, equals, value = word.partition("=")
        key = name[2:].replace("_", "-")
        if not word.startswith("--"):
            if name not in launcher.short or equals:
                raise _refused(word, f"{launcher.name} has no such option that is known here")
            takes_value, is_module = launcher.short[name], is_module or name == "-m"
        elif key in launcher.refused or (equals and any(other.startswith(key) for other in launcher.refused)):
            raise _refused(name, f"{launcher.name} would start something else than a Python program here")
        elif equals:
            takes_value = False
        elif key in launcher.flags or key in launcher.valued:
            takes_value, is_module = key in launcher.valued, is_module or key == "module"
        else:
            raise _refused(name, "whether the next word is its value is not known: write --option=value")
        if takes_value and (index + 1 >= len(words) or words[index + 1].startswith("-")):
            raise _refused(name, "it lacks its value")
        value = words[index + 1] if takes_value else value
        paths += [value] if ("/" in value or value.startswith("~")) and "://" not in value else []
        index += 2 if takes_value else 1
    if index >= len(words) or words[index].startswith("-"):
        raise CommandRefused(f"command: {launcher.name} is given no program to run.", hint=_HINT)
    return Program("module" if is_module else "script", words[index], tuple(paths))


def _behind_subcommand(name: str, words: Sequence[str], index: int) -> int:
    """The index of the launcher's first option."""
    if name not in WITH_SUBCOMMAND:
        return index
    if words[index : index + 1] != ["launch"]:
        said = one_line(words[index], 40) if index < len(words) else "nothing"
        raise CommandRefused(f"command: of accelerate only `accelerate launch` is started, not {said!r}.", hint=_HINT)
    return index + 1


def _require_script(path: Path, named: str, inside: Callable[[Path], bool]) -> None:
    """Refuse a script that does not lie in a root, or that is part of an installed package or environment there."""
    shown = one_line(named, 80)
    real = _real(path, named)
    if not inside(real):
        raise CommandRefused(f"command: the script {shown!r} does not lie in a root.", hint="Name a script that lies in one of the roots.")
    in_environment = real.parent.name in ("bin", "Scripts") and (real.parent.parent / "pyvenv.cfg").exists()
    if in_environment or _FOREIGN & set(real.parts):
        raise CommandRefused(f"command: {shown!r} belongs to an installed package, not to the program.", hint=_HINT)


def _real(path: Path, named: str) -> Path:
    """The path with links followed, as far as it exists."""
    try:
        return path.resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise CommandRefused(f"command: {one_line(named, 80)!r} cannot be found.", hint=_HINT) from error


def _require_module(name: str, folder: Path, inside: Callable[[Path], bool], more: Sequence[Path]) -> None:
    """Refuse ``-m`` of what is not the program's own: it has to be found where Python looks first."""
    if not _MODULE.fullmatch(name):
        raise CommandRefused(f"command: {one_line(name, 60)!r} is no name of a module.", hint=_HINT)
    standard = name.partition(".")[0] in sys.stdlib_module_names
    if not any(_holds(place, name, inside) for place in ((folder,) if standard else (folder, *more))):
        raise CommandRefused(
            f"command: the module {name!r} is not in {one_line(str(folder), 120)!r}, so another one of that name would run.",
            hint="Name a module of the program's folder, its script, or set PYTHONPATH to a folder of a root that holds it.",
        )


def _holds(folder: Path, name: str, inside: Callable[[Path], bool]) -> bool:
    base = folder.joinpath(*name.split("."))
    found = [path for path in (base.with_name(f"{base.name}.py"), base / "__main__.py") if path.is_file()]
    return bool(found) and all(inside(path.resolve()) and not _FOREIGN & set(path.resolve().parts) for path in found)


def _refused(word: str, why: str) -> CommandRefused:
    return CommandRefused(f"command: {one_line(word, 60)!r} is refused: {why}.", hint=_HINT)
