"""One escape function per sink. Names and source text come from programs we do not trust."""

from __future__ import annotations

import unicodedata


def terminal(text: str, *, keep: str = "") -> str:
    """Make text safe to print: control, format and unpaired characters become visible escapes.

    Args:
        text: Any string, lone surrogates included.
        keep: Control characters to leave as they are, such as a newline.

    Returns:
        Text without escape sequences, direction overrides or line breaks other than those in ``keep``.
    """
    return "".join(char if char in keep or unicodedata.category(char)[0] != "C" else _visible(char) for char in text)


def _visible(char: str) -> str:
    """Python's escape of one character; a tab is a space."""
    return " " if char == "\t" else char.encode("unicode_escape", "backslashreplace").decode("ascii")
