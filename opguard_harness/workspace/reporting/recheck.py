"""A finished report held against what is stored, once more: every boundary, slot, line of source and number of damage that it quotes.

The layouts show what the object says; so whatever changed it between gathering and writing, or in a file that was written before, is
found here and named.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opguard_core.certify.places import Places
from opguard_core.errors import OpGuardError
from opguard_core.ids import SIDES
from opguard_core.trace.reader import Run
from opguard_harness.access.untrusted import one_line
from opguard_harness.answer.ranks import reference_ranks
from opguard_harness.workspace.belonging import Belonging
from opguard_harness.workspace.cases import require_case
from opguard_harness.workspace.citations import quote_of, shown
from opguard_harness.workspace.evidence import digest_of
from opguard_harness.workspace.facts import Fact, resolve
from opguard_harness.workspace.findings import loose_numbers, unchecked_numbers
from opguard_harness.workspace.reporting import rows
from opguard_harness.workspace.reporting.rejudged import differences
from opguard_harness.workspace.reporting.tables import Tables
from opguard_harness.workspace.stored import answer_of


def unchecked(model: Mapping[str, Any]) -> Iterator[str]:
    """What a report says and the records do not, each in a sentence that names it; nothing if all of it holds.

    Args:
        model: The report.

    Raises:
        TraceFormatError: A trace cannot be read.
    """
    held = Held.of(model)
    for side, digest in zip(SIDES, held.digests, strict=True):
        if model["comparison"][side]["digest"] != digest:
            yield f"comparison.{side}.digest: the trace has {digest[:12]}"
    boundaries = [(f"trace.rows[{at}]", row) for at, row in enumerate(model["trace"]["rows"])]
    if model["pivot"] is not None:
        boundaries.insert(0, ("pivot.boundary", model["pivot"]["boundary"]))
    for at, boundary in boundaries:
        yield from _boundary(at, boundary, held, model)
    yield from _citations(model)


@dataclass(frozen=True)
class Held:
    """What is stored now."""

    runs: tuple[Run, Run]
    digests: tuple[str, str]
    mapped: dict[int, int]
    tables: Tables

    @classmethod
    def of(cls, model: Mapping[str, Any]) -> Held:
        """Open the traces of a report's comparison."""
        answer = answer_of(model["comparison"]["id"])
        paths = [Path(answer["trace"][side]) for side in SIDES]
        runs = (Run.open(paths[0]), Run.open(paths[1]))
        mapped = reference_ranks(answer)
        return cls(runs, (digest_of(paths[0]), digest_of(paths[1])), mapped, Tables(runs))

    def ranks(self, boundary: Mapping[str, Any]) -> rows.Ranks:
        """The two traces of a boundary's rank."""
        rank = boundary["rank"]
        return rows.Ranks(self.runs, self.digests, (self.mapped.get(rank, rank), rank))

    def places(self, ranks: rows.Ranks, side: int) -> Places:
        """Places of one side of it."""
        return self.tables.places(side, ranks.numbers[side], ranks.traces[1 - side])


def _boundary(at: str, boundary: Mapping[str, Any], held: Held, model: Mapping[str, Any]) -> Iterator[str]:
    """Both events of a boundary, and its slots, as their traces hold them."""
    named: list[dict[str, dict[str, Any]]] = []
    ranks = held.ranks(boundary)
    for side, name in enumerate(SIDES):
        told = boundary[name]
        named.append({})
        if told is None:
            continue
        try:
            event, slots = ranks.event(side, int(told["seq"]))
        except OpGuardError as error:
            yield f"{at}.{name}: {one_line(str(told['id']), 80)} does not resolve: {error.message}"
            continue
        yield from _same(f"{at}.{name}", {key: told[key] for key in told if key not in ("frame", "stack")}, rows.event(ranks, side, event))
        yield from _place(f"{at}.{name}", told, held.tables.of_event(side, held.places(ranks, side), event), held.tables, model)
        named[side] = {found["slot"]: found for slot in slots if (found := rows.slot(slot))}
    for number, pair in enumerate(boundary["slots"]):
        for side, name in enumerate(SIDES):
            told = pair[name]
            held_slot = None if told is None else named[side].get(told["slot"])
            if told is not None and held_slot is None:
                yield f"{at}.slots[{number}].{name}: the trace has no slot {one_line(told['slot'], 60)!r} there"
            elif told is not None and held_slot is not None:
                yield from _same(f"{at}.slots[{number}].{name}", told, held_slot)
        if not _holds(pair):
            yield f"{at}.slots[{number}].how: {pair['how']!r} does not follow from its digests"


def _place(
    at: str, told: Mapping[str, Any], found: tuple[int | None, int | None], fresh: Tables, model: Mapping[str, Any]
) -> Iterator[str]:
    """The place and the stack of an event, frame by frame."""
    frame, stack = found
    if (frame is None) != (told["frame"] is None) or (stack is None) != (told["stack"] is None):
        yield f"{at}.frame: the trace has another place"
        return
    if frame is not None:
        yield from _frame(f"{at}.frame", told["frame"], frame, fresh, model)
    if stack is not None:
        then, now = _entry(model, "stacks", told["stack"]), fresh.stacks[stack]
        if then is None:
            yield f"{at}.stack: there is no stack {told['stack']}"
            return
        if len(then) != len(now):
            yield f"{at}.stack: the trace has {len(now)} frames"
        for position, (one, other) in enumerate(zip(then, now, strict=False)):
            yield from _frame(f"{at}.stack[{position}]", one, other, fresh, model)


def _frame(at: str, number: int, own: int, fresh: Tables, model: Mapping[str, Any]) -> Iterator[str]:
    """One frame, and the lines of source around it."""
    told, found = _entry(model, "frames", number), fresh.frames[own]
    if told is None:
        yield f"{at}: there is no frame {number}"
        return
    yield from _same(at, told, {key: found[key] for key in found if key != "source"})
    lines = None if told["source"] is None else _entry(model, "sources", told["source"])
    stored = None if found["source"] is None else fresh.sources[found["source"]]
    for path, _, _ in differences(lines, stored, f"{at}.source"):
        yield f"{path}: the stored text is another one"


def _entry(model: Mapping[str, Any], table: str, number: int) -> Any:
    """What a number of a report refers to; None where it refers to nothing."""
    entries = model[table]
    return entries[number] if 0 <= number < len(entries) else None


def _same(at: str, told: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[str]:
    for key in found:
        if told.get(key) != found[key]:
            yield f"{at}.{key}: {one_line(repr(told.get(key)), 60)} is written, and the trace has {one_line(repr(found[key]), 60)}"


def _holds(pair: Mapping[str, Any]) -> bool:
    """Whether what is said of two slots can follow from their digests."""
    reference, suspect = (pair[side] for side in SIDES)
    if reference is None or suspect is None:
        return bool(pair["how"] == "alone")
    if not reference["digest"] or not suspect["digest"]:
        return bool(pair["how"] in ("unknown", "equal"))
    empty = reference["bytes"] == suspect["bytes"] == 0
    equal = empty or (reference["digest"], reference["dtype"]) == (suspect["digest"], suspect["dtype"])
    return bool(equal == (pair["how"] == "equal"))


def _citations(model: Mapping[str, Any]) -> Iterator[str]:
    """All that findings, the spread and a replay cite resolves, and findings quote what stands there."""
    comparison = model["comparison"]["id"]
    belonging = Belonging(require_case(model["case"]["id"]))
    known: dict[str, Fact] = {}
    for number, finding in enumerate(model["findings"]):
        facts = []
        for position, cited in enumerate(finding["evidence"]):
            at = f"findings[{number}].evidence[{position}]"
            try:
                fact = known[cited["id"]] if cited["id"] in known else resolve(cited["id"])
            except OpGuardError as error:
                yield f"{at}: {one_line(cited['id'], 80)} does not resolve: {error.message}"
                continue
            quote = quote_of(belonging.label(fact.id), fact)
            if quote != cited["quote"]:
                yield f"{at}.quote: it reads {one_line(quote, 120)!r}"
            known[fact.id] = fact
            facts.append(fact)
        loose = list(unchecked_numbers(finding["claim"], shown(facts))) if loose_numbers(finding["claim"]) else []
        if loose != finding["unchecked"]:
            yield f"findings[{number}].unchecked: numbers in its claim that nothing cited says are {loose}"
    spread = model["spread"] or {"consumers": [], "reached": [], "rejoined": None}
    fed = model["pivot"]["fed"] if model["pivot"] is not None else []
    readers = [*spread["consumers"], *spread["reached"], *([spread["rejoined"]] if spread["rejoined"] else []), *fed]
    for number, item in enumerate(readers):
        for side, name in item["ids"].items():
            if name:
                try:
                    resolve(name, comparison)
                except OpGuardError as error:
                    yield f"spread[{number}].{side}: {one_line(name, 80)} does not resolve: {error.message}"
