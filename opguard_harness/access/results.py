"""The last look at a result before it leaves: nothing a run controls speaks in our voice.

``summary`` and the calls of ``next`` are our own sentences, in which a run has only strict identifiers; each tool sees to that,
and tests with hostile traces check all of them. What stands here holds whatever a tool does: one visible line, bounded; an error
that may quote a file, a trace or a program is summed up by what kind of error it is, and its text is redacted data.
"""

from __future__ import annotations

import re
from typing import Any

from opguard_core.errors import ConflictingOptions, Interrupted, OpGuardError, UnknownOption
from opguard_core.plan.redact import redact_text
from opguard_harness import errors
from opguard_harness.access.untrusted import visible

SUMMARY_CHARS = 400
TEXT_CHARS = 2_000
_SPACES = re.compile(r"[ \t\r\n]+")
_OF_THE_CALLER = (
    errors.InvalidArguments,
    errors.UnknownTool,
    errors.ToolNotOffered,
    errors.OutsideRoots,
    errors.PathRefused,
    errors.CommandRefused,
    errors.VariableRefused,
    errors.UsageError,
    errors.SideNotFound,
    errors.JobNotFound,
    errors.CaseNotFound,
    UnknownOption,
    ConflictingOptions,
    Interrupted,
)
"""Errors whose text says only what the caller said, and words of ours."""


def guarded(result: dict[str, Any]) -> dict[str, Any]:
    """A result whose summary is one visible line, and whose error, if it tells one of a job, is data.

    Args:
        result: Plain values; changed in place.
    """
    result["summary"] = sentence(str(result["summary"]))
    if isinstance(result.get("error"), dict):
        result["error"] = error_data(result["error"])
    for call in result["next"]:
        call["why"] = sentence(str(call["why"]))
    return result


def sentence(text: str) -> str:
    """Text as one visible line of bounded length."""
    line = visible(_SPACES.sub(" ", text[: 4 * SUMMARY_CHARS]).strip())
    return line if len(line) <= SUMMARY_CHARS else f"{line[: SUMMARY_CHARS - 3]}..."


def error_data(known: dict[str, Any]) -> dict[str, Any]:
    """The error of a result: redacted, visible, bounded. Line breaks stay, for a text may be a list."""
    return {name: value if name == "slug" else _shown(str(value)) for name, value in known.items()}


def error_summary(error: OpGuardError) -> str:
    """What an error is, in a sentence that quotes nobody but the caller."""
    if isinstance(error, _OF_THE_CALLER):
        return sentence(redact_text(error.message))
    kind = next(told for cls in type(error).__mro__ if (told := cls.__dict__.get("__doc__")))
    return sentence(f"{kind.strip().splitlines()[0]} `error` says which, why, and what to do.")


def _shown(text: str) -> str:
    shown = visible(redact_text(text))
    return shown if len(shown) <= TEXT_CHARS else f"{shown[:TEXT_CHARS]} ...[{len(shown) - TEXT_CHARS} characters cut]"
