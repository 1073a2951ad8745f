"""How a trace says that something is wrong with it: one error builder, and the torn tail as a value.

Damage that could make rows wrong is an error; a trace that merely stops early is a value (`TornTail`) and its prefix is
still read.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from opguard_core.errors import TraceFormatError

ErrorT = TypeVar("ErrorT", bound=TraceFormatError)


@dataclass(frozen=True)
class TornTail:
    """Why a rank's (or a run's) record stops before its end.

    Attributes:
        slug: Stable key: "no-manifest", "manifest-damaged", "not-finished", "index-missing", "index-damaged",
            "segment-missing", "segment-short".
        text: One sentence with the values that matter.
        next_seq: First event number that is not in the prefix; 0 for a run manifest.
        path: The file that told.
    """

    slug: str
    text: str
    next_seq: int
    path: str


def refusal(
    kind: type[ErrorT],
    what: str,
    *,
    path: Path | str,
    offset: int | None = None,
    expected: Any = None,
    found: Any = None,
    hint: str | None = None,
    slug: str | None = None,
) -> ErrorT:
    """Build the one error a failed read ends in.

    Args:
        kind: Class of the error, a `TraceFormatError`.
        what: What is wrong, as the start of a sentence.
        path: The file or folder.
        offset: Byte in the file where it shows; None when it concerns the file as a whole.
        expected: What the format asks for.
        found: What is there.
        hint: Overrides the hint of the class.
        slug: Overrides the slug of the class.
    """
    where = f"{path}" if offset is None else f"{path} at byte {offset}"
    message = f"{what}: {where}: expected {expected}, found {found}."
    return kind(message, slug=slug, hint=hint, path=str(path), offset=offset, expected=expected, found=found)
