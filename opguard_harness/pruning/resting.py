"""What a stored result was made from, and what therefore stays with it. Standard library only."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from opguard_core.errors import OpGuardError
from opguard_core.ids import SIDES
from opguard_harness.access.opened import opened
from opguard_harness.compare.programs import FILE as PROGRAMS_FILE
from opguard_harness.errors import PruneRefused
from opguard_harness.jobs.folder import JobFolder, jobs_dir
from opguard_harness.pruning.holders import Holders, holder_of, named_in, result_named
from opguard_harness.workspace.evidence import ARTEFACTS
from opguard_harness.workspace.listing import Entry, json_object
from opguard_harness.workspace.stored import ANSWER_FILE


def resting(rows: Iterable[Entry], kept: Mapping[str, str], holders: Holders) -> dict[str, str]:
    """What stays because something else that stays was made from it, is being made from it, or says more about it.

    Args:
        rows: All that is stored.
        kept: Ids that stay, with the reason.
        holders: Where cited records lie.

    Returns:
        More of them: the traces that a comparison which stays has paired, what a replay is about, and replays of what stays.

    Raises:
        PruneRefused: What one that stays was made from cannot be read.
    """
    by_id = {row.id: row for row in rows}
    replays: dict[str, list[str]] = {}
    for row in by_id.values():
        if row.kind == "confirm" and (about := _confirmed(row)):
            replays.setdefault(about, []).append(row.id)
    found = dict(kept)
    waiting = list(found)
    while waiting:
        name = waiting.pop()
        more = dict.fromkeys(replays.get(name, ()), f"it replays {name}")
        if name in by_id:
            more |= {part: f"{name} {how} it" for part, how in _made_from(by_id[name], by_id, holders)}
        fresh = {part: why for part, why in more.items() if part not in found}
        found |= fresh
        waiting += fresh
    return found


def _made_from(row: Entry, ids: Iterable[str], holders: Holders) -> Iterator[tuple[str, str]]:
    """Ids of stored results that one was made from, or is being made from, each with how."""
    try:
        if os.path.lexists(jobs_dir() / row.id):
            asked = JobFolder.of(row.id).spec().get("arguments")
            yield from ((part, "was asked for with") for part in named_in(_texts(asked), ids) if part != row.id)
        elif row.kind == "confirm" and row.path is not None and opened(row.path) is None:
            raise PruneRefused("its job is gone, which said what it replays")
        about = _confirmed(row)
        if about:
            yield about, "replays"
        if row.path is not None:
            yield from ((part, how) for part, how in _read(row.path, holders) if part != row.id)
    except (OpGuardError, OSError) as error:
        said = error.message if isinstance(error, OpGuardError) else error.strerror
        raise PruneRefused(
            f"{row.id} stays, and nobody can say what it was made from; nothing is removed. ({said})",
            hint=f"Look at {row.path or jobs_dir() / row.id}; move it elsewhere to give it up.",
        ) from error


def _read(folder: Path, holders: Holders) -> Iterator[tuple[str, str]]:
    """What lies in a result folder says which traces it is about, and what its filters cite."""
    mark = opened(folder)
    if mark is not None:  # its answer names where the traces lay when it was packed
        yield from ((holder_of(mark.trace(side)), "compares") for side in mark.traces)
        return
    for name in (ANSWER_FILE, PROGRAMS_FILE):
        if not os.path.lexists(folder / name):
            continue
        document = json_object(folder / name)
        traces = _sides(document) if name == ANSWER_FILE else _given(document)
        yield from ((holder, "compares") for trace in traces if (holder := holder_of(Path(trace))))
        cited = [item for rule in document.get("filters") or () if isinstance(rule, dict) for item in _texts(rule.get("evidence"))]
        yield from ((holder, "is filtered by a rule that cites") for item in cited for holder in holders.of(item))


def _sides(answer: dict[str, Any]) -> list[str]:
    traces = answer.get("trace")
    if not isinstance(traces, dict) or not all(isinstance(traces.get(side), str) for side in SIDES):
        raise PruneRefused("its answer is damaged")
    return [traces[side] for side in SIDES]


def _given(programs: dict[str, Any]) -> list[str]:
    """Sides that were traces already."""
    sides = [programs.get(side) for side in SIDES]
    return [side["trace"] for side in sides if isinstance(side, dict) and isinstance(side.get("trace"), str)]


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)


def _confirmed(row: Entry) -> str:
    """Id of the comparison that a replay is about; empty if its result does not say."""
    told = json_object(jobs_dir() / row.id / ARTEFACTS["result"]).get("result")
    about = told.get("confirms") if isinstance(told, dict) else None
    return result_named(about) if isinstance(about, str) else ""
