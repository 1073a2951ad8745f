"""What a comparison is asked to do, as plain data; the shell and the tools build it, the pipeline carries it out."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from opguard_core.errors import ConfigError, UnknownOption
from opguard_core.ids import MODES, SIDES
from opguard_core.plan.config import AUTO, COMPILED, ENGINES, parse_steps, require_calls
from opguard_core.plan.document import Plan
from opguard_core.plan.keeping import Keep, Transplant
from opguard_core.plan.semantic import parse_all
from opguard_harness.errors import UsageError

if TYPE_CHECKING:
    from opguard_core.certify.filters import Filter


@dataclass(frozen=True)
class SideRequest:
    """One side as named by the user.

    Attributes:
        path: Folder of the program, a Python script, or an existing trace directory.
        args: Words appended to the command line of this side.
        env: Variables set for this side on top of the harness's own environment.
        commit: Commit of the folder's repository to run instead of what lies there; empty for none.
    """

    path: Path
    args: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    commit: str = ""

    @property
    def folder(self) -> Path:
        """The folder that nothing may be written into: the side itself, or the one its script lies in."""
        path = self.path.expanduser().absolute()
        return path if path.is_dir() else path.parent


@dataclass(frozen=True)
class CaptureRequest:
    """How the programs are observed.

    Attributes:
        mode: One of ``ids.MODES``.
        steps: Half-open window of 0-based steps, or None for all.
        deterministic: Apply the determinism knobs in both programs.
        engine: Who observes operators, one of ``plan.config.ENGINES``; the contract says who did.
        compiled: How compiled regions are observed, one of ``plan.config.COMPILED``; the contract says how they were.
        semantic: Patterns of ``plan.semantic``: calls that get a name; a plan's own, if there is one.
        callsites: Patterns of ``plan.callsites``: callees that are observed where they are called; a plan's own, if there is one.
        python: The training's interpreter; None looks for one.
        timeout_s: Seconds each side may run; None for no limit.
        plan: The plan that both runs follow, or None; it has the same mode, steps and knobs.
        end_after: Updates after which a program in a private copy is ended; None lets it run.
        bare_steps: Unobserved updates to time before that.
        stop_on_contract: End the comparison as soon as a setting that changes arithmetic is seen to differ.
        attached: End the program when this process is killed. Not for jobs, whose programs are found by their mark.
        keep: By side, the boundaries that its run keeps in full; each names its own, since a key holds for one program.
        transplants: By side, kept bytes that its run gets in place of results. Only for private copies: such a run is labelled.
    """

    mode: str = "full"
    steps: tuple[int, int] | None = None
    deterministic: bool = False
    engine: str = AUTO
    compiled: str = AUTO
    semantic: tuple[str, ...] = ()
    callsites: tuple[str, ...] = ()
    python: Path | None = None
    timeout_s: float | None = None
    plan: Plan | None = None
    end_after: int | None = None
    bare_steps: int = 0
    stop_on_contract: bool = False
    attached: bool = False
    keep: Mapping[str, Keep] = field(default_factory=dict)
    transplants: Mapping[str, tuple[Transplant, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what no launch can honour."""
        if self.mode not in MODES:
            raise UnknownOption(f"--mode {self.mode!r} is not one of {', '.join(MODES)}.", hint=f"Use one of: {', '.join(MODES)}.")
        if self.engine not in ENGINES:
            raise UnknownOption(f"--engine {self.engine!r} is not one of {', '.join(ENGINES)}.", hint=f"Use one of: {', '.join(ENGINES)}.")
        if self.compiled not in COMPILED:
            raise UnknownOption(
                f"--compiled {self.compiled!r} is not one of {', '.join(COMPILED)}.", hint=f"Use one of: {', '.join(COMPILED)}."
            )
        parse_all(self.semantic)
        require_calls(self.mode, callsites=self.callsites, semantic=self.semantic)
        if self.timeout_s is not None and not self.timeout_s > 0:
            raise ConfigError(f"--timeout {self.timeout_s} leaves no time to run.", hint="Give a positive number of seconds.")


@dataclass(frozen=True)
class CompareRequest:
    """A whole comparison.

    ``argv`` None means the default command; ``narrow`` replays the step that an answer leaves open; ``filters`` are benign
    differences that somebody declared.
    """

    reference: SideRequest
    suspect: SideRequest
    capture: CaptureRequest = CaptureRequest()
    argv: tuple[str, ...] | None = None
    out: Path | None = None
    narrow: bool = False
    filters: tuple[Filter, ...] = ()


def named_sides(
    reference: str,
    suspect: str,
    *,
    reference_commit: str = "",
    words: tuple[str, str] = ("", ""),
    env: tuple[Sequence[str], Sequence[str]] = ((), ()),
) -> tuple[SideRequest, SideRequest]:
    """Both sides as the options of a command name them.

    Args:
        reference: Folder, script or trace; empty with a commit means the suspect's folder.
        suspect: Folder, script or trace.
        reference_commit: Commit to run as the reference; empty for none.
        words: ``--reference-args`` and ``--suspect-args``.
        env: ``--reference-env`` and ``--suspect-env``.

    Raises:
        UsageError: There is no reference.
        ConfigError: An option does not split into words or variables.
    """
    if not reference and not reference_commit:
        raise UsageError("Missing option --reference: name the side that is right.", hint="See `opguard-harness compare --help`.")
    arguments = [split_words(text, f"--{side}-args") for side, text in zip(SIDES, words, strict=True)]
    variables = [split_env(list(pairs), f"--{side}-env") for side, pairs in zip(SIDES, env, strict=True)]
    return (
        SideRequest(Path(reference or suspect), arguments[0], variables[0], reference_commit),
        SideRequest(Path(suspect), arguments[1], variables[1]),
    )


def split_words(text: str, option: str) -> tuple[str, ...]:
    """Split an option's value the way a shell does.

    Raises:
        ConfigError: A quotation is not closed.
    """
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise ConfigError(f"{option} {text!r} does not split into words: {error}.", hint="Close each quotation mark.") from error


def split_env(pairs: list[str], option: str) -> dict[str, str]:
    """Read ``K=V`` pairs; the last one of a name wins.

    Raises:
        ConfigError: A pair has no name or no ``=``.
    """
    result = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name or "\0" in pair:
            raise ConfigError(f"{option} {pair!r} is not K=V.", hint=f"Write {option} NAME=VALUE; repeat the option for more.")
        result[name] = value
    return result


def steps_of(text: str, option: str = "--steps") -> tuple[int, int] | None:
    """Read a window of steps; an empty text means all steps."""
    return parse_steps(text, option) if text else None
