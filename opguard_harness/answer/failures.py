"""What to show for any exception, and where the traceback of one that nobody expected is kept."""

from __future__ import annotations

import os
import secrets
import traceback
from collections.abc import Iterator

from opguard_core.errors import Interrupted, OpGuardError
from opguard_harness.config import private_dir, state_dir
from opguard_harness.errors import Internal, SystemRefused, UsageError

LOG = "internal-errors.txt"
_LOG_BYTES = 1_000_000  # a log that has grown beyond this is started anew


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


def of_a_call(error: BaseException) -> OpGuardError:
    """The error that a tool call answers with: nothing of an unexpected exception reaches the caller but a reference to the log.

    Its text may hold what a run controls, paths and secrets.
    """
    known = as_opguard_error(error)
    if not isinstance(known, Internal) or known is error:
        return known
    reference = f"E-{secrets.token_hex(3)}"
    kept = _logged(reference, error)
    hint = "Call it once more; if it fails again, go on without this tool and report the reference."
    return Internal(f"internal error ref {reference} ({f'logged in {LOG} of the state folder' if kept else 'not logged'}).", hint=hint)


def _logged(reference: str, error: BaseException) -> bool:
    """Append the traceback to the log in the state folder; says whether that worked."""
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        path = private_dir(state_dir()) / LOG
        grown = path.exists() and path.stat().st_size > _LOG_BYTES
        descriptor = os.open(path, flags | (os.O_TRUNC if grown else 0), 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as stream:
            stream.write(f"{reference}\n{text}\n")
    except (OSError, OpGuardError, RuntimeError):
        return False
    return True


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
