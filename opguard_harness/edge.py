"""The tool edge: the one place where errors become exit codes and where standard output is written.

Exit code 1 means "diverged" and nothing else, so it is derived from a delivered verdict only; every exception, whatever
raised it, becomes 2 (or 130 when the user interrupted).
"""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TextIO

from opguard_core.errors import Interrupted, OpGuardError
from opguard_harness.answer.plain import dumps
from opguard_harness.answer.schema import error_answer
from opguard_harness.cli.outcome import Outcome
from opguard_harness.config import private_dir, state_dir
from opguard_harness.errors import AnswerUndelivered, Internal, SystemRefused, UsageError
from opguard_harness.report.escape import terminal

EXIT_OK = 0
EXIT_ERROR = 2
EXIT_INTERRUPTED = 130
LINE = "\n"  # the one control character that error texts may print: they may hold a traceback
EXIT_OF_VERDICT = {"identical": 0, "diverged": 1, "inconclusive": 3}


def run(words: Sequence[str], answered: threading.Event) -> int:
    """Carry out one command line and return its exit code.

    Args:
        words: Command line without the program's name.
        answered: Set before the first byte of an answer is written; whoever finds it set writes none of its own.
    """
    options = words[: words.index("--")] if "--" in words else words
    wants_json = "--json" in options or "call" in options[:1]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # an ASCII terminal must not turn a verdict into an encoding error
            stream.reconfigure(errors="backslashreplace")
    with _signals():
        try:
            from opguard_harness.cli.app import dispatch

            return _deliver(dispatch(words), answered)
        except BaseException as error:  # noqa: BLE001 - the tool edge: whatever is raised below must end in 2 or 130
            return _report(error, answered, wants_json=wants_json)


def _deliver(outcome: Outcome, answered: threading.Event) -> int:
    """Print what a command said; only then does a verdict count."""
    if outcome.text:
        answered.set()
        _write(sys.stdout, outcome.text + "\n")
    if outcome.failed:
        return EXIT_ERROR
    return EXIT_OK if outcome.verdict is None else EXIT_OF_VERDICT[outcome.verdict]


def _report(error: BaseException, answered: threading.Event, *, wants_json: bool) -> int:
    """Say what went wrong, on standard error and as the one JSON object, and return 2 or 130.

    What stopped an answer half-way, or came when it was out, is said on standard error only.
    """
    known = as_opguard_error(error)
    code = EXIT_INTERRUPTED if isinstance(known, Interrupted) else EXIT_ERROR
    where = _keep_traceback(error) if isinstance(known, Internal) else ""
    try:
        _write(sys.stderr, f"opguard-harness: {terminal(str(known), keep=LINE)}\n{where}")
    except AnswerUndelivered:
        code = max(code, EXIT_ERROR)
    if wants_json and not answered.is_set():
        answered.set()
        try:
            _write(sys.stdout, dumps(error_answer(known.as_dict())) + "\n")
        except AnswerUndelivered:
            code = max(code, EXIT_ERROR)
    return code


def as_opguard_error(error: BaseException) -> OpGuardError:
    """The error to show for any exception.

    Groups (from task groups) stand for the most telling member: an interrupt, else an error of ours, else the first.
    """
    found = list(_leaves(error))
    for leaf in found:
        if isinstance(leaf, (KeyboardInterrupt, Interrupted)) or type(leaf).__name__ == "Abort":
            return Interrupted("Interrupted; the children were ended and unfinished results removed.", hint="Run the command again.")
    for leaf in found:
        if isinstance(leaf, OpGuardError):
            return leaf
    leaf = found[0]
    message = getattr(leaf, "format_message", None)
    if message is not None and hasattr(leaf, "exit_code"):  # a click usage error, whichever package it comes from
        context = getattr(leaf, "ctx", None)
        command = getattr(context, "command_path", None) or "opguard-harness"
        return UsageError(str(message()), hint=f"See `{command} --help`.")
    if isinstance(leaf, MemoryError):
        return SystemRefused("Out of memory.", hint="Compare fewer steps with --steps A:B, or use a machine with more memory.")
    if isinstance(leaf, OSError):
        where = f": {leaf.filename}" if leaf.filename else ""
        return SystemRefused(f"{leaf.strerror or type(leaf).__name__}{where}.")
    return Internal(f"{type(leaf).__name__}: {leaf}{_raised_at(leaf)}.")


def _leaves(error: BaseException) -> Iterator[BaseException]:
    """The exceptions inside a group, or the exception itself."""
    members = getattr(error, "exceptions", None)
    if isinstance(members, tuple) and members:
        for member in members:
            yield from _leaves(member)
    else:
        yield error


def _raised_at(error: BaseException) -> str:
    """`` (file:line)`` of the innermost frame, for messages of internal errors."""
    frames = traceback.extract_tb(error.__traceback__)
    return f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""


def _keep_traceback(error: BaseException) -> str:
    """Store the traceback of an internal error in the state folder; say where, or show it when that fails."""
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    try:
        path = private_dir(state_dir()) / "last-internal-error.txt"
        path.write_text(text, "utf-8", errors="backslashreplace")
    except (OSError, OpGuardError, RuntimeError):
        return terminal(text, keep=LINE)
    return f"Traceback: {path}\n"


def _write(stream: TextIO | None, text: str) -> None:
    """Write and flush; a closed reader is an error of ours, not a traceback at interpreter exit.

    Raises:
        AnswerUndelivered: The stream's reader has gone.
    """
    if stream is None:
        raise AnswerUndelivered("Could not write: the stream was closed when the command started.")
    try:
        stream.write(text)
        stream.flush()
    except (OSError, ValueError) as error:
        # The buffer still holds the text; without a working descriptor the interpreter would fail again at exit.
        with open(os.devnull, "wb") as nowhere:  # noqa: PTH123 - a descriptor is what is wanted
            os.dup2(nowhere.fileno(), 1 if stream is sys.stdout else 2)
        raise AnswerUndelivered(f"Could not write the answer: {error}.") from error


@contextmanager
def _signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP unwind like Ctrl-C, so that children end and unfinished results are removed."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {}
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # under nohup SIGHUP stays ignored
            before[number] = signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
