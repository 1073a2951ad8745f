"""The filter file: one JSON document, private, replaced as a whole, changed by one writer at a time.

    {"format": 1, "filters": [{"id": ..., "operator": ..., "slot": ..., "suspect": {"file", "function", "text"}, ...}]}

The state folder's own file is used where none is named. A file that is not what we wrote is an error and stays as it is.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from opguard_core.certify.filters import Filter, parse_filters
from opguard_core.errors import FilterInvalid
from opguard_core.trace.files import FILE_MODE, sync_directory, write_atomic
from opguard_harness.answer.plain import dumps
from opguard_harness.config import private_dir, state_dir
from opguard_harness.errors import FilterNotFound, FiltersDamaged

FORMAT = 1
MAX_BYTES = 4 << 20
MAX_FILTERS = 1_000


def filter_path(name: str) -> Path:
    """The file that is meant: the one named, else the state folder's."""
    return Path(name).expanduser().absolute() if name else state_dir() / "filters.json"


def filters_named(name: str) -> tuple[Filter, ...]:
    """The filters of the file that a comparison names; none if it names no file.

    Raises:
        FiltersDamaged: The file is missing, unreadable or not what we wrote.
    """
    return tuple(read_filters(filter_path(name), required=True)) if name else ()


def read_filters(path: Path, *, required: bool = False) -> list[Filter]:
    """The filters of a file, by id; none where there is no file.

    Args:
        path: The file.
        required: Someone named it, so it has to be there.

    Raises:
        FiltersDamaged: It is missing though required, unreadable, of another format, or holds what is no filter.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError as error:
        if not required:
            return []
        raise FiltersDamaged(f"{path} does not exist.", hint="Name one, or make one with `opguard-harness filters add`.") from error
    except OSError as error:
        raise FiltersDamaged(f"{path} cannot be read: {error.strerror}.") from error
    if len(data) > MAX_BYTES:
        raise FiltersDamaged(f"{path} is larger than {MAX_BYTES} bytes; that is no filter file.")
    return _parse(path, data)


def add_filter(path: Path, new: Filter) -> bool:
    """Add one filter and keep all others.

    Returns:
        False if the very same filter is there already.

    Raises:
        FilterInvalid: Another filter has its id, or hides the same difference.
        FiltersDamaged: The file is not what we wrote; it stays as it is.
    """

    def change(filters: list[Filter]) -> list[Filter]:
        for other in filters:
            if _is_same(other, new):
                return filters
            if other.id == new.id or other.names_same(new):
                raise FilterInvalid(
                    f"Filter {other.id!r} in {path} hides that difference already, for another reason.",
                    hint=f"Remove it first: opguard-harness filters remove {other.id}.",
                )
        if len(filters) >= MAX_FILTERS:
            raise FilterInvalid(f"{path} holds {MAX_FILTERS} filters already.", hint="Remove some; so many hide too much.")
        return [*filters, new]

    return _change(path, change)


def remove_filter(path: Path, name: str) -> Filter:
    """Remove one filter and keep all others.

    Returns:
        The one removed.

    Raises:
        FilterNotFound: There is none of that id.
        FiltersDamaged: The file is not what we wrote; it stays as it is.
    """
    removed: list[Filter] = []

    def change(filters: list[Filter]) -> list[Filter]:
        removed[:] = [rule for rule in filters if rule.id == name]
        if not removed:
            raise FilterNotFound(f"{path} has no filter {name!r}; it has {', '.join(rule.id for rule in filters[:8]) or 'none'}.")
        return [rule for rule in filters if rule.id != name]

    _change(path, change)
    return removed[0]


def _is_same(one: Filter, other: Filter) -> bool:
    """Equal in all but the time of adding."""
    return {**one.as_dict(), "created": ""} == {**other.as_dict(), "created": ""}


def _change(path: Path, change: Callable[[list[Filter]], list[Filter]]) -> bool:
    """Read, change and write while nobody else does; returns whether anything changed."""
    if path.parent == state_dir():
        private_dir(path.parent)
    path = path.resolve()  # a link stays a link: what it leads to is changed
    with _locked(path):
        before = read_filters(path)
        after = sorted(change(before), key=lambda rule: rule.id)
        if after == before:
            return False
        document = {"format": FORMAT, "filters": [rule.as_dict() for rule in after]}
        write_atomic(path, f"{dumps(document, indent=1)}\n".encode("ascii"))
        sync_directory(path.parent)
    return True


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock beside the file; it belongs to the descriptor, so a writer that dies lets go of it."""
    descriptor = os.open(path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of which no key is said twice: the first would be lost without a word."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"one object has {next(name for name in names if names.count(name) > 1)[:40]!r} twice")
    return found


def _parse(path: Path, data: bytes) -> list[Filter]:
    try:
        document: Any = json.loads(data, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise FiltersDamaged(f"{path} is not JSON: {error}.") from error
    if not isinstance(document, dict) or not isinstance(document.get("filters"), list):
        raise FiltersDamaged(f'{path} is no filter file: expected an object {{"format": {FORMAT}, "filters": [...]}}.')
    if document.get("format") != FORMAT or type(document["format"]) is not int:
        found = str(document.get("format"))[:40]
        raise FiltersDamaged(f"{path} has format {found}; this release reads {FORMAT}.", hint="Use the release that wrote it.")
    if document.keys() - {"format", "filters"} or len(document["filters"]) > MAX_FILTERS:
        raise FiltersDamaged(f"{path} holds more than a filter file may: keys beside format and filters, or over {MAX_FILTERS} filters.")
    try:
        return parse_filters(document["filters"])
    except FilterInvalid as error:
        raise FiltersDamaged(f"{path}: {error.message}", hint=error.as_dict()["fix"]) from error
