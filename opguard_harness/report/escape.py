"""One escape function per sink. Names and source text come from programs we do not trust."""

from __future__ import annotations

import re
import unicodedata


def terminal(text: str, *, keep: str = "") -> str:
    """Make text safe to print: control, format and unpaired characters become visible escapes.

    Args:
        text: Any string, lone surrogates included.
        keep: Control characters to leave as they are, such as a newline.

    Returns:
        Text without escape sequences, direction overrides or line breaks other than those in ``keep``.
    """
    return "".join(char if char in keep or not _hidden(char) else _visible(char) for char in text)


def _hidden(char: str) -> bool:
    """Whether a character is a control, format, private or unpaired one, or breaks lines or paragraphs."""
    category = unicodedata.category(char)
    return category[0] == "C" or category in ("Zl", "Zp")


def _visible(char: str) -> str:
    """Python's escape of one character; a tab is a space."""
    return " " if char == "\t" else char.encode("unicode_escape", "backslashreplace").decode("ascii")


_MARKED = re.compile(r"([\\`*_{}\[\]#|~$!])")
_BEGINS = re.compile(r"^(\d{1,9})([.)])|^([-+=:])")
_LINKED = re.compile(r"(?i)(:)(?=//)|(?<=\bwww)(\.)|(@)")


def markdown(text: str) -> str:
    """Make text safe to put into Markdown, anywhere in a line or a table cell: it renders as what it says.

    Args:
        text: Any string.

    Returns:
        One line without emphasis, code, links, images, HTML, headings, lists, quotes or cell borders of its own.
    """
    marked = _MARKED.sub(r"\\\1", terminal(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"))
    linked = _LINKED.sub(r"\\\g<0>", marked)
    return _BEGINS.sub(lambda match: f"{match[1]}\\{match[2]}" if match[1] else f"\\{match[3]}", linked.strip(" "))


_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;", "`": "&#96;"}


def html(text: str) -> str:
    """Make text safe between the tags of an HTML page: it shows what it says and is never a tag or an entity.

    Args:
        text: Any string.

    Returns:
        Text without control characters other than line breaks.
    """
    return "".join(_ENTITIES.get(char, char) for char in terminal(text, keep="\n"))


def html_attribute(text: str) -> str:
    """Make text safe inside a double-quoted attribute of an HTML element, other than one that holds a script, a style or an address.

    Args:
        text: Any string.

    Returns:
        One line that cannot end its quotes.
    """
    return "".join(_ENTITIES.get(char, char) for char in terminal(text))


def json_island(text: str) -> str:
    """Make a JSON text safe inside a ``script`` element of type ``application/json``: it cannot end the element or begin a comment.

    Args:
        text: JSON in ASCII.

    Returns:
        The same JSON value, without the characters that HTML looks for.

    Raises:
        ValueError: The text is not ASCII.
    """
    if not text.isascii():
        raise ValueError("a JSON island is ASCII")
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def perfetto(text: str, limit_chars: int = 200) -> str:
    """Make text safe for a Perfetto trace: valid Unicode, one visible line, bounded.

    Args:
        text: Any string, lone surrogates included.
        limit_chars: Characters to keep, about; what is cut is counted.
    """
    seen = terminal(text[:limit_chars])
    missing = max(0, len(text) - limit_chars)
    return seen if not missing else f"{seen} ...[{missing} characters cut]"
