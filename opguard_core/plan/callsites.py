"""Which callees a run observes at the call: the words of ``--callsites``."""

from __future__ import annotations

import re
from collections.abc import Iterable

from opguard_core.errors import UnknownOption

AUTO, ALL = "auto", "all"
_PATTERN = re.compile(r"[A-Za-z_*?\[][\w.*?\[\]!-]*")
_LONGEST = 200


def parse_callsites(texts: Iterable[str], option: str = "--callsites") -> tuple[str, ...]:
    """Read patterns of callees, each text with one or several between commas; sorted, each once.

    A pattern is "auto" (native functions that are not torch's, the standard library's or a common package's), "all" (every native
    function, at every call of every module that can be rewritten) or a name with wildcards, ``my_ext.*``.

    Raises:
        UnknownOption: One is none of these.
    """
    patterns = {part.strip() for text in texts for part in text.split(",")} - {""}
    for pattern in sorted(patterns):
        if len(pattern) > _LONGEST or not _PATTERN.fullmatch(pattern):
            raise UnknownOption(
                f"{option} {pattern[:60]!r} names no callees.",
                hint=f"Use {option} {AUTO}, {option} {ALL}, or the functions' module and name with wildcards, as my_ext.*.",
            )
    return tuple(sorted(patterns))
