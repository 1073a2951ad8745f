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
from opguard_harness.answer.failures import as_opguard_error, of_a_call
from opguard_harness.answer.plain import dumps
from opguard_harness.answer.schema import error_answer
from opguard_harness.cli.outcome import Outcome
from opguard_harness.config import private_dir, state_dir
from opguard_harness.errors import AnswerUndelivered, Internal
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
    is_call = "call" in options[:1]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # an ASCII terminal must not turn a verdict into an encoding error
            stream.reconfigure(errors="backslashreplace")
    with _signals():
        try:
            from opguard_harness.cli.app import dispatch

            return _deliver(dispatch(words), answered)
        except BaseException as error:  # noqa: BLE001 - the tool edge: whatever is raised below must end in 2 or 130
            return _report(error, answered, wants_json=is_call or "--json" in options, is_call=is_call)


def _deliver(outcome: Outcome, answered: threading.Event) -> int:
    """Print what a command said; only then does a verdict count."""
    if outcome.text:
        answered.set()
        _write(sys.stdout, outcome.text + "\n")
    if outcome.failed:
        return EXIT_ERROR
    return EXIT_OK if outcome.verdict is None else EXIT_OF_VERDICT[outcome.verdict]


def _report(error: BaseException, answered: threading.Event, *, wants_json: bool, is_call: bool) -> int:
    """Say what went wrong, on standard error and as the one JSON object, and return 2 or 130.

    The object of a failed `call` is the one that the MCP server gives.

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
        answer = _failed_call(error) if is_call else error_answer(known.as_dict())
        answered.set()
        try:
            _write(sys.stdout, dumps(answer) + "\n")
        except AnswerUndelivered:
            code = max(code, EXIT_ERROR)
    return code


def _failed_call(error: BaseException) -> dict[str, object]:
    """The result of a failed `call`; the modules below it may be what is broken, so they are imported only for one."""
    from opguard_harness.invoke import error_result

    return error_result(of_a_call(error))


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
