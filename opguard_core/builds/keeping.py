"""Other things that are made once per machine and kept in the same private folder: a GPU program compiled for one kind of card."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from opguard_core.builds import folder, lock
from opguard_core.builds.recipe import NotBuilt


def keep(name: str, facts: Iterable[bytes], make: Callable[[], bytes], *, suffix: str, seconds: float = 120.0) -> bytes | NotBuilt:
    """What ``make`` returns, from the folder if it was made before.

    Args:
        name: Names the file; letters, digits and underscores.
        facts: All that decides about the content.
        make: Called at most once per machine and set of facts, under a lock. Raises RuntimeError with the reason if it cannot.
        suffix: Of the file, with its dot.
        seconds: How long another process may take before we do it ourselves.

    Returns:
        The bytes; where there is no folder to keep them in, made anew each time.
    """
    digest = digest_of(facts)
    try:
        place = folder.private_folder()
    except OSError:
        return _made(make)
    try:
        found = folder.find(place, name, digest, suffix)
        return found.read_bytes() if found else _in_turn(place, name, digest, make, suffix, seconds)
    except OSError as error:
        return NotBuilt(str(error))


def digest_of(facts: Iterable[bytes]) -> str:
    """Key of what was made from these facts."""
    key = hashlib.sha256()
    for fact in facts:
        key.update(hashlib.sha256(fact).digest())
    return key.hexdigest()[:32]


def _in_turn(place: Path, name: str, digest: str, make: Callable[[], bytes], suffix: str, seconds: float) -> bytes | NotBuilt:
    with lock.turn(place / f".{name}-{digest}.lock", seconds, lambda _: None) as ours:
        found = folder.find(place, name, digest, suffix)
        if found is not None:
            return found.read_bytes()
        if ours.failure:
            return NotBuilt(ours.failure)
        made = _made(make)
        if isinstance(made, NotBuilt):
            ours.failed(made.reason)
            return made
        _store(place, name, digest, made, suffix)
        return made


def _made(make: Callable[[], bytes]) -> bytes | NotBuilt:
    try:
        return make()
    except RuntimeError as error:
        return NotBuilt(str(error))


def _store(place: Path, name: str, digest: str, content: bytes, suffix: str) -> None:
    descriptor, scratch = tempfile.mkstemp(prefix=f".{name}-", suffix=".tmp", dir=place)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
        path = Path(scratch)
        path.replace(place / f"{name}-{digest}-{folder.content_digest(path)}{suffix}")
    finally:
        Path(scratch).unlink(missing_ok=True)
