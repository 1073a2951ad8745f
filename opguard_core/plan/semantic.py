"""Orders for semantic boundaries: which calls of modules and functions get a name, and which.

    model.layers.*.self_attn                 modules by path, named by it; `*` is one part of a path, `**` any number of them
    model.layers.*.self_attn=layers.*.attn   the same under another name, so that two code bases meet; each `*` is what the path has
    .=model                                  the outermost module, whose path is empty
    package.module:apply_rotary=rope         a function (or `Class.method`) by where it is defined

All orders hold for both sides: each has what it has. Standard library only; nothing here imports what it names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from opguard_core.errors import ConfigError
from opguard_core.marks import NAME

MAX_PATTERNS = 64
MAX_CHARS = 240
_ROOT = "."
_PATH = re.compile(r"[A-Za-z0-9_.*#\-]+")
_DOTTED = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*")
_WILD = re.compile(r"\*\*|\*")
_OTHER = re.compile(r"[^A-Za-z0-9_.\-\[\]/#]")


@dataclass(frozen=True)
class ModulePattern:
    """Calls of modules.

    Attributes:
        text: As it was given.
        path: Matches whole paths; one group for each wildcard.
        name: Name, with `*` for each group; empty: the path itself.
    """

    text: str
    path: re.Pattern[str]
    name: str

    def named(self, path: str) -> str | None:
        """Name of the module with that path, None if this is not about it."""
        found = self.path.fullmatch(path)
        if found is None:
            return None
        if not self.name:
            return identifier(path)
        parts = iter(found.groups())
        return identifier(_WILD.sub(lambda _: next(parts, ""), self.name))


@dataclass(frozen=True)
class FunctionPattern:
    """Calls of one function.

    Attributes:
        text: As it was given.
        module: Name of the module that defines it.
        qualname: Its name there: ``function`` or ``Class.method``.
        name: Name of its calls.
    """

    text: str
    module: str
    qualname: str
    name: str


Pattern = ModulePattern | FunctionPattern


def parse(text: str) -> Pattern:
    """Read one order.

    Raises:
        ConfigError: It is none.
    """
    target, equals, name = text.partition("=")
    module, colon, qualname = target.partition(":")
    if len(text) > MAX_CHARS or (equals and not name):
        raise _refused(text, "a name follows `=`" if equals else f"it is longer than {MAX_CHARS} characters")
    if name and NAME.fullmatch(_WILD.sub("x", name)) is None:
        raise _refused(text, "a name has letters, digits and . _ - [ ] / # and at most 120 characters")
    if colon:
        if not (_DOTTED.fullmatch(module) and _DOTTED.fullmatch(qualname)) or "*" in name:
            raise _refused(text, "a function is written package.module:function or package.module:Class.method")
        return FunctionPattern(text, module, qualname, name or qualname)
    if target == _ROOT:
        return ModulePattern(text, re.compile(""), name or "model")
    if not _PATH.fullmatch(target) or target.startswith(".") or target.endswith(".") or ".." in target or "***" in target:
        raise _refused(text, "a path has parts between dots, and `*` for any part or `**` for any parts")
    wilds = len(_WILD.findall(target))
    if name and len(_WILD.findall(name)) > wilds:
        raise _refused(text, "its name has more wildcards than its path")
    words = (re.escape(part) for part in _WILD.split(target))
    groups = ("(.+)" if wild == "**" else r"([^.]+)" for wild in [*_WILD.findall(target), ""])
    pieces = [piece for pair in zip(words, groups, strict=True) for piece in pair]
    return ModulePattern(text, re.compile("".join(pieces[:-1])), name)


def parse_all(texts: Iterable[str]) -> tuple[Pattern, ...]:
    """Read all orders; the first that fits a module names it.

    Raises:
        ConfigError: One is none, or there are too many.
    """
    found = tuple(parse(text) for text in texts)
    if len(found) > MAX_PATTERNS:
        raise ConfigError(f"{len(found)} --semantic patterns are given; {MAX_PATTERNS} are the most.", hint="Use wildcards.")
    return found


def identifier(text: str) -> str:
    """A name made fit for answers: other characters become an underscore, a long one keeps its end."""
    made = _OTHER.sub("_", text)[-120:]
    return made if NAME.fullmatch(made) else f"_{made[-119:]}"


def _refused(text: str, why: str) -> ConfigError:
    return ConfigError(
        f"--semantic {text[:80]!r} names no boundary: {why}.",
        hint="Write a module path such as 'model.layers.*.mlp', or package.module:function; PATH=NAME gives it a name of both sides.",
    )
