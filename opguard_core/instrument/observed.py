"""Which calls of a run were observed: where they stand, and the tag by which they are found in another version of the source."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

from opguard_core.instrument import runtime
from opguard_core.instrument.runtime import Site
from opguard_core.instrument.tags import Tag, tags_of

LISTED = 500
_Span = tuple[int, int, tuple[int, int]]


def report(root: Path) -> list[dict[str, Any]]:
    """Every site that called something to be observed, the first `LISTED` of them.

    Args:
        root: Folder that files below it are named relative to.

    Returns:
        ``operator``, ``file``, ``line``, ``function``, ``kind`` and, of a call whose source is as it was, ``tag``.

    Cost: each source with such a site is parsed once more; at the end of a run.
    """
    found = [(site, name) for key, name in sorted(runtime.chosen.items()) if (site := runtime.describe(key)) is not None][:LISTED]
    tags: dict[str, dict[_Span, Tag]] = defaultdict(dict)
    for file in {site.file for site, _ in found}:
        tags[file] = _tags(file)
    rows = [_row(site, name, tags[site.file].get((site.line, site.column, (site.end_line, site.end_column))), root) for site, name in found]
    return sorted(rows, key=lambda row: (row["file"], row["line"], row["operator"]))


def _tags(file: str) -> dict[_Span, Tag]:
    try:
        return {(tag.line, tag.column, tag.end): tag for tag in tags_of(Path(file).read_bytes())}
    except (OSError, SyntaxError, ValueError, RecursionError):
        return {}


def _row(site: Site, name: str, tag: Tag | None, root: Path) -> dict[str, Any]:
    path = Path(site.file)
    shown = path.relative_to(root).as_posix() if path.is_relative_to(root) else path.as_posix()
    row = {"operator": name, "file": shown, "line": site.line, "function": site.function, "kind": site.kind}
    return row if tag is None else {**row, "tag": tag.text}
