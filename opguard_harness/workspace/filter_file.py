"""The filter file: one JSON document, private, replaced as a whole, changed by one writer at a time.

    {"format": 1, "filters": [{"id": ..., "operator": ..., "slot": ..., "suspect": {"file", "function", "text"}, ...}]}

The state folder's own file is used where none is named. A file that is not what we wrote is an error and stays as it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from opguard_core.certify.filters import Filter, parse_filters
from opguard_core.errors import FilterInvalid
from opguard_core.trace.files import sync_directory, write_atomic
from opguard_harness.access.rules import current
from opguard_harness.answer.plain import dumps
from opguard_harness.config import private_dir, state_dir
from opguard_harness.errors import FilterNotFound, FiltersDamaged, PathRefused
from opguard_harness.workspace.documents import locked, once

FORMAT = 1
MAX_BYTES = 4 << 20
MAX_FILTERS = 1_000


def filter_path(name: str) -> Path:
    """The file that is meant: the one named, else the state folder's."""
    return current().path(name, "filters") if name else state_dir() / "filters.json"


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
        data = current().read(path, "filters", MAX_BYTES)
    except PathRefused as error:
        raise FiltersDamaged(f"{error.message} That is no filter file.") from error
    except FileNotFoundError as error:
        if not required:
            return []
        raise FiltersDamaged(f"{path} does not exist.", hint="Name one, or make one with `add_benign_filter`.") from error
    except OSError as error:
        raise FiltersDamaged(f"{path} cannot be read: {error.strerror}.") from error
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
                    hint=f"Remove it first: `add_benign_filter` with `remove` {other.id!r} and the same file.",
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
    path = current().output(path, "filters").resolve()  # a link stays a link: what it leads to is changed
    with locked(path):
        before = read_filters(path)
        after = sorted(change(before), key=lambda rule: rule.id)
        if after == before:
            return False
        document = {"format": FORMAT, "filters": [rule.as_dict() for rule in after]}
        write_atomic(path, f"{dumps(document, indent=1)}\n".encode("ascii"))
        sync_directory(path.parent)
    return True


def _parse(path: Path, data: bytes) -> list[Filter]:
    try:
        document: Any = json.loads(data, object_pairs_hook=once)
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
