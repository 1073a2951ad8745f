"""The canonical text of an operator's arguments, read back into a closed set of literals. Nothing of it is ever evaluated.

    text     = argument (";" argument)*                          what `engines.canonical` writes
    argument = name "=" value
    value    = None | True | False | integer | float as hex | complex(hex,hex) | 'text' | [value,...] | word

As JSON: null, booleans, integers and lists stand for themselves; everything else is an object with one key that says what it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

MAX_TEXT = 1 << 20
MAX_DEPTH = 8
MAX_VALUES = 1 << 14
DTYPES = frozenset(
    "uint8 int8 int16 int32 int64 uint16 uint32 uint64 float16 float32 float64 bfloat16 complex32 complex64 complex128 bool "
    "float8_e5m2 float8_e4m3fn float8_e5m2fnuz float8_e4m3fnuz float8_e8m0fnu".split()
)
MEMORY_FORMATS = frozenset(("contiguous_format", "preserve_format", "channels_last", "channels_last_3d"))
LAYOUTS = frozenset(("strided",))
_PLAIN = {"None": None, "True": True, "False": False}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_FLOAT = r"[+-]?(?:0x[01]\.[0-9a-f]{1,13}p[+-]\d{1,4}|inf|nan)"
_TOKEN = re.compile(
    rf"(?P<complex>complex\({_FLOAT},{_FLOAT}\))|(?P<float>{_FLOAT})|(?P<integer>-?(?:0|[1-9]\d{{0,18}}))(?![\w.])"
    r"""|(?P<text>'(?:[^'\\]|\\(?:['"\\nrt]|x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8}))*'|"(?:[^"\\]|\\(?:['"\\nrt]|x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8}))*")"""
    r"|(?P<word>[A-Za-z_][A-Za-z0-9_]{0,63})(?![\w.#(\[])"
)
_ESCAPE = re.compile(r"\\(?:(['\"\\nrt])|x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))")
_LETTERS = {"n": "\n", "r": "\r", "t": "\t"}


def parse_arguments(text: str) -> dict[str, Any]:
    """Read the text of all arguments.

    Returns:
        By name, each value in its JSON form.

    Raises:
        ValueError: A value is outside the closed set; the text names the argument and what it is.
    """
    if len(text) > MAX_TEXT:
        raise ValueError(f"the arguments have {len(text)} characters")
    found: dict[str, Any] = {}
    at = 0
    while at < len(text):
        name = _NAME.match(text, at)
        if name is None or text[name.end() : name.end() + 1] != "=":
            raise ValueError(f"no argument begins at {_seen(text, at)}")
        if name[0] in found:
            raise ValueError(f"argument {name[0]} stands there twice")
        reader = _Reader(text, name.end() + 1)
        try:
            found[name[0]] = reader.value()
        except ValueError as error:
            raise ValueError(f"argument {name[0]}: {error}") from error
        at = reader.at
        if at < len(text):
            if text[at] != ";" or at + 1 == len(text):
                raise ValueError(f"argument {name[0]} is followed by {_seen(text, at)}")
            at += 1
    return found


class _Reader:
    """Reads one value."""

    def __init__(self, text: str, at: int) -> None:
        self.text, self.at = text, at
        self._count = 0

    def value(self, depth: int = 0) -> Any:
        self._count += 1
        if self._count > MAX_VALUES or depth > MAX_DEPTH:
            raise ValueError("it has too many values, or lists in lists in lists")
        if self.text.startswith("[", self.at):
            return self._list(depth)
        token = _TOKEN.match(self.text, self.at)
        if token is None:
            raise ValueError(f"{_seen(self.text, self.at)} is no value that can be rebuilt")
        self.at = token.end()
        kind = str(token.lastgroup)
        return _READERS[kind](token[kind])

    def _list(self, depth: int) -> list[Any]:
        self.at += 1
        found: list[Any] = []
        if self.text.startswith("]", self.at):
            self.at += 1
            return found
        while True:
            found.append(self.value(depth + 1))
            end = self.text[self.at : self.at + 1]
            self.at += 1
            if end == "]":
                return found
            if end != ",":
                raise ValueError("a list does not end")


def _seen(text: str, at: int) -> str:
    """What stands there, for a message: a name if it begins with one, and nothing that a run could say with more."""
    name = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,39}").match(text, at)
    return f"{name[0]!r}" if name else f"character {at}"


def _word(word: str) -> Any:
    if word in _PLAIN:
        return _PLAIN[word]
    for kind, known in (("dtype", DTYPES), ("memory_format", MEMORY_FORMATS), ("layout", LAYOUTS)):
        if word in known:
            return {kind: word}
    raise ValueError(f"{word!r} is the name of a kind of value, not a value")


def _complex(text: str) -> dict[str, Any]:
    return {"complex": text[len("complex(") : -1].split(",")}


def _text(text: str) -> dict[str, Any]:
    def one(match: re.Match[str]) -> str:
        letter, *codes = match.groups()
        if letter:
            return _LETTERS.get(letter, letter)
        code = int(next(code for code in codes if code), 16)
        if code > 0x10FFFF:
            raise ValueError("a character beyond Unicode")
        return chr(code)

    return {"text": _ESCAPE.sub(one, text[1:-1])}


_READERS: dict[str, Callable[[str], Any]] = {
    "complex": _complex,
    "float": lambda text: {"float": text},
    "integer": int,
    "text": _text,
    "word": _word,
}
