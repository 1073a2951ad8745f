"""Turn what the user named into two sides that can be run or read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from opguard_core.errors import ConflictingOptions
from opguard_harness.access.opened import refuse_opened
from opguard_harness.access.rules import current
from opguard_harness.access.traces import trace_folder
from opguard_harness.compare.checkout import check_out
from opguard_harness.compare.folders import private_copy
from opguard_harness.compare.request import CompareRequest, SideRequest
from opguard_harness.config import DEFAULT_ARGV
from opguard_harness.errors import SideNotFound


@dataclass(frozen=True)
class ProgramSide:
    """A program to run.

    Attributes:
        name: "reference" or "suspect".
        folder: Its working directory, absolute.
        argv: Its command line, with the interpreter still spelled ``python``.
        env: Variables set for it.
        origin: The folder that the user named; differs from ``folder`` for commits and private copies.
    """

    name: str
    folder: Path
    argv: tuple[str, ...]
    env: dict[str, str]
    origin: Path


@dataclass(frozen=True)
class TraceSide:
    """A trace that exists already."""

    name: str
    trace: Path


Side = ProgramSide | TraceSide


def resolve(request: CompareRequest, scratch: Path) -> tuple[Side, Side]:
    """Find both sides; check a commit out; make the private copy of a self-replay before anything has run.

    Args:
        request: The comparison.
        scratch: Folder that outlives the runs and is removed afterwards.

    Raises:
        SideNotFound: A side is not there.
        ConflictingOptions: Options do not fit what the side is.
        CommitNotFound: The commit cannot be checked out.
        SpaceShort: The private copy does not fit.
    """
    reference = _side("reference", request.reference, request.argv, scratch)
    suspect = _side("suspect", request.suspect, request.argv, scratch)
    if isinstance(reference, ProgramSide) and isinstance(suspect, ProgramSide) and _same_folder(reference.folder, suspect.folder):
        copy = private_copy(suspect.folder, scratch / "suspect")
        suspect = ProgramSide("suspect", copy, suspect.argv, suspect.env, suspect.origin)
    return reference, suspect


def look_up(name: str, side: SideRequest) -> tuple[Path, Path | None]:
    """What a side is, as far as that can be seen without running or copying anything.

    Args:
        name: "reference" or "suspect".
        side: As the user named it.

    Returns:
        Its path, and its trace directory if it is a trace.

    Raises:
        SideNotFound: It is not there, or is nothing that can be run or read.
        ConflictingOptions: It is a trace, and options are given that only fit a program.
        OutsideRoots: It lies where this call may not go.
    """
    path = current().path(side.path, name)
    if not path.exists():
        raise SideNotFound(f"--{name} {path} does not exist.")
    trace = trace_folder(path)
    if trace is not None:
        given = [option for option, value in (("args", side.args), ("env", side.env), ("commit", side.commit)) if value]
        if given:
            raise ConflictingOptions(
                f"--{name} is a trace, so --{name}-{given[0]} cannot apply: nothing is run.",
                hint=f"Leave --{name}-{given[0]} out, or name the program's folder.",
            )
        return path, current().path(trace, name)
    if not path.is_dir() and not path.name.endswith((".py", ".pyw")):
        raise SideNotFound(f"--{name} {path} is neither a folder, nor a Python script, nor a trace.")
    return path, None


def _side(name: str, side: SideRequest, argv: tuple[str, ...] | None, scratch: Path) -> Side:
    """Resolve one side."""
    path, trace = look_up(name, side)
    if trace is not None:
        return TraceSide(name, trace)
    refuse_opened(path.resolve(), name)
    folder, script = (path, "") if path.is_dir() else (path.parent, path.name)
    run_in = check_out(folder, side.commit, scratch / name) if side.commit else folder
    if script and not (run_in / script).is_file():
        raise SideNotFound(f"--{name} {script} does not exist in commit {side.commit}.")
    return ProgramSide(name, run_in, (*_argv(argv, script), *side.args), side.env, folder)


def _argv(argv: tuple[str, ...] | None, script: str) -> tuple[str, ...]:
    """The command line of one side; a side named by its script runs that script in place of the one in ARGV."""
    words = list(argv or DEFAULT_ARGV)
    if script:
        position = next((index for index, word in enumerate(words) if word.endswith((".py", ".pyw"))), None)
        if position is not None:
            words[position] = script
    return tuple(words)


def _same_folder(reference: Path, suspect: Path) -> bool:
    """Whether both sides would run in one and the same folder, links followed."""
    return reference.resolve() == suspect.resolve()
