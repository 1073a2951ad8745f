"""What an observed run wrote, made fit to be shown: every text visible, redacted, of bounded length."""

from __future__ import annotations

from typing import Any

from opguard_harness.access.untrusted import one_line

TEXT_CHARS = 200
_PLACE_KEYS = ("file", "line", "function", "text")


def shown(value: Any, limit_chars: int = TEXT_CHARS) -> Any:
    """Rebuild plain values with every text on one visible line.

    Args:
        value: Dicts with keys of ours, lists, texts, numbers.
        limit_chars: Characters of one text.
    """
    if isinstance(value, str):
        return one_line(value, limit_chars)
    if isinstance(value, dict):
        return {key: shown(item, limit_chars) for key, item in value.items()}
    return [shown(item, limit_chars) for item in value] if isinstance(value, (list, tuple)) else value


def place(full: dict[str, Any] | None, limit_chars: int = TEXT_CHARS) -> dict[str, Any] | None:
    """A place with what a reader needs; the statement as well where it says more than the expression."""
    if full is None:
        return None
    brief = {key: shown(full[key], limit_chars) for key in _PLACE_KEYS}
    whole = " ".join(full["statement"].split())
    return {**brief, "statement": shown(full["statement"], limit_chars)} if whole != " ".join(full["text"].split()) else brief


def line(full: dict[str, Any] | None, limit_chars: int = 120) -> str:
    """A place in one line: ``file:line in function | expression``."""
    if full is None:
        return ""
    return one_line(f"{full['file']}:{full['line']} in {full['function']} | {full['text']}", limit_chars)
