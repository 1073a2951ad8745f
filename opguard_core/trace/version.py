"""The version of the trace format, apart from the version of the package.

A bump needs a line in FORMAT.md, a stored trace of the old version under tests/fixtures, and a reader that still reads it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from opguard_core.errors import TraceFormatError, UnsupportedVersion
from opguard_core.trace.problems import refusal

FORMAT_VERSION = 1


def check_version(record: Any, path: Path) -> None:
    """Refuse what a newer release wrote.

    Args:
        record: Decoded JSON of a manifest or of the first line of an index.
        path: Where it came from.

    Raises:
        UnsupportedVersion: ``record["format"]`` is newer than this release reads.
        TraceFormatError: There is no such number.
    """
    version = record.get("format") if isinstance(record, dict) else None
    if type(version) is not int or version < 1:
        raise refusal(TraceFormatError, "No format version", path=path, expected=f"format: {FORMAT_VERSION}", found=version)
    if version > FORMAT_VERSION:
        raise refusal(UnsupportedVersion, "Trace format too new", path=path, expected=f"at most {FORMAT_VERSION}", found=version)
