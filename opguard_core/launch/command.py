"""The command line of ``python -m opguard_core run``; the edge where errors become exit code 2.

Standard library only, so that a training Python that lacks something can be told what.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from opguard_core import __version__
from opguard_core.errors import ConfigError, ConflictingOptions, OpGuardError, UnknownOption
from opguard_core.ids import MODES, SENTINEL
from opguard_core.launch.launcher import LaunchOptions, launch
from opguard_core.plan.callsites import parse_callsites
from opguard_core.plan.config import AUTO, COMPILED, ENGINES, MAX_STEPS, parse_steps, require_calls
from opguard_core.plan.semantic import parse_all

ERROR_EXIT = 2
_USAGE = (
    "python -m opguard_core run --out DIR [--mode MODE] [--steps A:B] [--step-offset N] [--deterministic] [--plan FILE] "
    "[--engine ENGINE] [--compiled LEVEL] [--semantic PATTERN]... [--callsites PATTERN]... "
    "[--end-after N [--bare-steps M]] [--end-with PID] [--keep FILE] [--transplant FILE] "
    "-- PROGRAM ARG..."
)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UnknownOption(f"{message[:1].upper()}{message[1:]}.", hint=f"Usage: {_USAGE}")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m opguard_core", usage=_USAGE, description="Run a training under observation.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"opguard {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, parser_class=_Parser)
    run = commands.add_parser("run", usage=_USAGE, help="run one program and write its trace", allow_abbrev=False)
    run.add_argument("--out", type=Path, required=True, metavar="DIR", help="trace directory, absent or empty")
    run.add_argument("--mode", choices=MODES, default="full", help="what is probed (default: full)")
    run.add_argument("--steps", metavar="A:B", help="record steps A to B-1 only, 0-based")
    run.add_argument("--step-offset", type=int, metavar="N", help="updates done before this run began (a resumed run)")
    run.add_argument("--deterministic", action="store_true", help="apply the determinism knobs in every rank and record them")
    run.add_argument("--plan", type=Path, metavar="FILE", help="the plan this run follows; mode, steps and knobs must be its own")
    run.add_argument("--engine", choices=ENGINES, default=AUTO, help="who observes operators, with the same events (default: auto)")
    run.add_argument(
        "--compiled", choices=COMPILED, default=AUTO, help="how compiled regions are observed (default: auto, kernels if it can be)"
    )
    run.add_argument("--semantic", action="append", default=[], metavar="PATTERN", help="name calls of modules or functions; repeatable")
    run.add_argument(
        "--callsites",
        action="append",
        default=[],
        metavar="PATTERN",
        help="observe calls of native functions: auto, all, my_ext.*; repeatable",
    )
    run.add_argument("--end-after", type=int, metavar="N", help="end the program once N updates were recorded: for private copies")
    run.add_argument("--bare-steps", type=int, default=0, metavar="M", help="with --end-after: time M unobserved updates before the end")
    run.add_argument("--end-with", type=int, metavar="PID", help="end the program when this process, which started us, has gone")
    run.add_argument("--keep", type=Path, metavar="FILE", help="keep the boundaries that this file names in full, as safetensors")
    run.add_argument("--transplant", type=Path, metavar="FILE", help="put kept bytes in place of a result: for private copies")
    return parser


def parse(argv: Sequence[str]) -> LaunchOptions:
    """Read the command line; everything behind the first ``--`` is the program's.

    Raises:
        ConfigError: An option is unknown or cannot be carried out.
    """
    words = list(argv)
    split = words.index("--") if "--" in words else len(words)
    options = _parser().parse_args(words[:split])
    program = words[split + 1 :]
    if not program:
        raise ConfigError("There is no program to run.", hint=f"Usage: {_USAGE}")
    if options.step_offset is not None and not 0 <= options.step_offset <= MAX_STEPS:
        raise ConfigError(
            f"--step-offset {options.step_offset} is no number of steps.", hint="Give the number of updates done before this run."
        )
    parse_all(options.semantic)
    callsites = parse_callsites(options.callsites)
    require_calls(options.mode, callsites=callsites, semantic=options.semantic)
    if options.end_after is not None and options.end_after < 1:
        raise ConfigError(f"--end-after {options.end_after} leaves no update to record.", hint="Give the number of updates to record.")
    if options.bare_steps and options.end_after is None:
        raise ConfigError("--bare-steps needs --end-after.", hint="Say after how many recorded updates the program is ended.")
    if options.mode == SENTINEL and (options.keep is not None or options.transplant is not None):
        raise ConflictingOptions(
            "--keep and --transplant need operators, which mode sentinel does not record.", hint="Use --mode verify, or leave them out."
        )
    return LaunchOptions(
        out=options.out,
        argv=program,
        mode=options.mode,
        steps=None if options.steps is None else parse_steps(options.steps),
        step_offset=options.step_offset,
        deterministic=options.deterministic,
        plan=options.plan,
        end_after=options.end_after,
        bare_steps=options.bare_steps,
        end_with=options.end_with,
        keep=options.keep,
        engine=options.engine,
        compiled=options.compiled,
        semantic=tuple(options.semantic),
        callsites=callsites,
        transplant=options.transplant,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code (the program's, 128+N for signal N, or 2 for an error of ours)."""
    try:
        return launch(parse(sys.argv[1:] if argv is None else argv))
    except OpGuardError as error:
        say(str(error))
    except Exception as error:  # noqa: BLE001 - the tool edge: our own mistakes must not look like the program's exit code 1
        traceback.print_exc()
        say(f"{type(error).__name__}: {error} This is a mistake in OpGuard. {OpGuardError.hint} [{OpGuardError.slug}]")
    return ERROR_EXIT


def say(text: str) -> None:
    """One line of ours on the standard error output that we share with the program."""
    sys.stderr.write(f"opguard: {text}\n")
