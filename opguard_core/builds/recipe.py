"""What is asked of a build, and its two possible answers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple


@dataclass(frozen=True)
class Recipe:
    """How to build one shared object; everything here is part of the key of the built file.

    Attributes:
        name: Names the file; letters, digits and underscores.
        source: The one translation unit.
        headers: Other files whose content counts, wherever they are.
        language: Which compilers are tried.
        flags: Passed to every compiler.
        libraries: Linked with, behind the source.
        tunings: Further flags, tried in this order until a build works.
        facts: What else decides: ABI of the interpreter, version of torch.
        says: What a person who waits for it reads, for example "the native observer".
        seconds: How long one run of the compiler may take.
    """

    name: str
    source: Path
    headers: tuple[Path, ...] = ()
    language: Literal["c", "c++"] = "c"
    flags: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    tunings: tuple[tuple[str, ...], ...] = ((),)
    facts: tuple[str, ...] = ()
    says: str = ""
    seconds: float = 120.0

    def content(self) -> bytes:
        """All sources, in order.

        Raises:
            OSError: One is missing.
        """
        return b"\0".join(path.read_bytes() for path in (self.source, *self.headers))


class Built(NamedTuple):
    """A file that is ours and whole.

    Attributes:
        path: The shared object.
        compiler: The command that built it.
        flags: What it was given.
        opened: What the caller's ``open_with`` made of it, or None.
    """

    path: Path
    compiler: str
    flags: tuple[str, ...]
    opened: Any = None


class NotBuilt(NamedTuple):
    """Why there is none; goes into the manifest."""

    reason: str
