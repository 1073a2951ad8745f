"""The report of a case as Markdown. All text that a person, a program or a trace controls passes the Markdown escape."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from opguard_core.ids import SIDES
from opguard_harness.report import device_words, semantic_words
from opguard_harness.report.escape import markdown
from opguard_harness.report.page.damage import replayed
from opguard_harness.report.page.parts import kind_of, operators
from opguard_harness.report.transplant_words import sentence

_SHOWN = 300
_CONTRACT_SHOWN = 40
_REASONS_SHOWN = 20
_FILTERS_SHOWN = 40
_RANKS_SHOWN = 8
_WORK_SHOWN = 6
_MARKS = {"good": "for it", "note": "note", "warn": "keep in mind"}


def case_page(model: Mapping[str, Any]) -> str:
    """Lay a checked report out.

    Args:
        model: As `workspace.reporting.model` makes it.
    """
    sides = [side for side in SIDES if model["pivot"] is not None and model["pivot"]["boundary"][side] is not None]
    cited = sum(len(item["evidence"]) for item in model["findings"]) + len(sides)
    comparison = model["comparison"]
    lines = [
        f"# OpGuard report of {_text(model['case']['id'])}",
        "",
        f"Symptom, as it was told: {_text(model['case']['symptom']) or 'none was told'}",
        "",
        f"Folder: {_text(model['case']['root'])}",
        "",
        "## Verdict",
        "",
        *_verdict(model),
        "",
        f"From comparison {_text(comparison['id'])}, answer.json of SHA-256 {_text(comparison['answer_sha256'])}.",
        *_pivot(model),
        "",
        "## How sure",
        "",
        *(f"- {_MARKS[item['level']]}: {_text(item['text'])}" for item in model["confidence"]),
        "",
        "## Findings",
        "",
        *_findings(model["findings"]),
        *_listed("Damage", _damage(model["confirmation"]), 0, 0),
        *_listed("How it spreads", _spread(model["spread"]), 0, 0),
        *_listed("Named boundaries", _semantic(model), 0, 0),
        *_listed("Device work", _device_work(model), 0, 0),
        *_listed("Settings that differ", _contract(model["contract"]), len(model["contract"]), _CONTRACT_SHOWN),
        *_listed("Filters used", _filters(model["filters"]), len(model["filters"]), _FILTERS_SHOWN),
        *_listed("Limits", _reasons(model), len(model["reasons"]), _REASONS_SHOWN),
        *_listed("Run it again", _again(model["again"]), 0, 0),
        "",
        "## What was checked",
        "",
        f"Written {_text(model['written'])}. {cited} citations were looked up again, and the values quoted from them read again.",
        "report.html shows the trace, report.json is this report for programs.",
    ]
    return "\n".join(lines) + "\n"


def _verdict(model: Mapping[str, Any]) -> list[str]:
    pivot, prefix = model["pivot"], model["prefix"]
    if model["verdict"] == "diverged":
        where = f"step {pivot['step']}, {pivot['phase']}, rank {pivot['rank']}"
        what = f"{_text(' / '.join(operators(pivot['boundary'])))} {_text(pivot['tells'])}"
        named = ", ".join(item["origin"] for item in pivot["alternatives"])
        others = f" (or {named})" if named else ""
        return [
            f"**diverged** at {_text(where)}: {what}, after {prefix['pairs']} equal pairs of boundaries.",
            "",
            f"Origin: {_text(pivot['origin'] + others)}: {pivot['means']}.",
            *(
                f"- It was fed by {_text(item['operator'])} ({item['what']}): {_text(item['suspect'] or item['reference'])}"
                for item in pivot["fed"]
            ),
        ]
    if model["verdict"] == "identical":
        harmless = model["trace"]["named"]["ended without effect"]
        return [
            f"**identical** over {prefix['pairs']} pairs of boundaries, {prefix['tensors']} tensors, {prefix['bytes']} bytes.",
            "",
            f"Differences that ended without effect: {harmless}.{' `list_differences` shows them.' if harmless else ''}",
        ]
    slugs = ", ".join(reason["slug"] for reason in model["reasons"])
    return [f"**inconclusive**: {_text(slugs)}; {prefix['pairs']} pairs of boundaries are equal."]


def _pivot(model: Mapping[str, Any]) -> list[str]:
    """The place of the pivot on both sides, with what the traces hold there."""
    pivot = model["pivot"]
    if pivot is None:
        return []
    lines = ["", "| side | place | expression | operator | recorded there | evidence |", "|---|---|---|---|---|---|"]
    for side in SIDES:
        event = pivot["boundary"][side]
        frame = None if event is None or event["frame"] is None else model["frames"][event["frame"]]
        where = "no place is recorded" if event else "it has no such operator"
        if frame is not None:
            where = f"{frame['file']}:{frame['line']} in {frame['function']}"
        cells = [
            where,
            frame["text"] if frame else "",
            event["operator"] if event else "",
            _content(pivot, side),
            event["id"] if event else "",
        ]
        lines.append(f"| {side} | {' | '.join(_text(cell) for cell in cells)} |")
    told = device_words.kernels(pivot["kernels"], 8) if "kernels" in pivot else ""
    return [*lines, "", f"Its kernels: {_text(told, 1_200)}."] if told else lines


def _content(pivot: Mapping[str, Any], side: str) -> str:
    """What a trace holds about the slot of the pivot."""
    slots = [pair[side] for pair in pivot["boundary"]["slots"] if pair[side] is not None]
    slot = next((item for item in slots if item["slot"] == pivot["tells"]), None)
    if pivot["boundary"][side] is None:
        return ""
    if slot is None:
        return "no tensor of that name"
    return f"{slot['dtype']}[{slot['shape']}], {slot['bytes']} bytes, fingerprint {slot['digest'] or slot['status']}"


def _findings(findings: Sequence[Mapping[str, Any]]) -> list[str]:
    if not findings:
        return ["None was recorded."]
    lines = []
    for number, item in enumerate(findings, 1):
        unseen = "; nothing here was seen by us" if not item["evidence"] else "" if "`" in item["claim"] else "; it quotes no value of them"
        lines.append(f"{number}. {_text(item['claim'], 1_200)} ({_text(item['basis'])}{unseen}; {_text(item['id'])})")
        lines += [f"    - {_text(one['id'], 420)}: {_text(one['quote'])}" for one in item["evidence"]]
        lines += [f"    - Not checked, for nothing it cites says so: {_text(', '.join(item['unchecked']))}"] if item["unchecked"] else []
    return lines


def _listed(title: str, rows: Iterable[str], total: int, shown: int) -> list[str]:
    """A section with a list; nothing where there is nothing to list."""
    items = [f"- {row}" for row in rows]
    items = items[:shown] if shown else items
    if not items:
        return []
    return ["", f"## {title}", "", *items, *([f"- and {total - shown} more"] if total > shown > 0 else [])]


def _damage(confirmed: Mapping[str, Any] | None) -> Iterable[str]:
    if confirmed is None:
        return
    yield f"A replay of both sides: {_text(replayed(confirmed))} ({_text(confirmed['id'])})."
    if confirmed["transplant"]:
        moved = confirmed["transplant"]
        places = "; ".join(f"{_text(place['operator'])} {_text(place['at'])}" for place in moved["places"])
        more = "".join(f" {part}" for part in (_text(moved["why"]), f"Places: {places}." if places else "") if part)
        yield f"{sentence(moved)} ({_text(moved['id'])}){more}"
    for item in confirmed["slots"]:
        found = item["damage"]
        if found is None:
            yield f"{_text(item['slot'])}: {_text(item['state'])}{_text(': ' + item['why'] if item['why'] else '')}"
            continue
        count = "" if found.get("differing") is None else f"{found['differing']} of {found['elements']} elements differ; "
        yield f"{_text(item['slot'])}: {count}looks like {_text(kind_of(found['likely']))}: {_text(found['rule'])}"
    if confirmed["effect"]:
        found = confirmed["effect"]["damage"]
        side = _text(confirmed["effect"]["side"])
        yield f"only the {side} runs it; of its own input it makes: {_text(kind_of(found['likely']))}: {_text(found['rule'])}"


def _spread(spread: Mapping[str, Any] | None) -> Iterable[str]:
    if spread is None:
        return
    yield f"In that step, differing bytes that follow from it are read {spread['total']} times."
    for item in spread["consumers"]:
        yield f"{_text(item['operator'])} {_text(item['slot'])} ({_text(item['results'])}): {_text(item['suspect'] or item['reference'])}"
    for item in spread["reached"]:
        yield f"it reaches {_text(item['what'])}: {_text(item['operator'])}: {_text(item['suspect'] or item['reference'])}"
    for item in spread["state"]:
        yield f"it reaches {item['count']} tensors of {_text(item['kind'])}: {_text(', '.join(item['names']))}"


def _device_work(model: Mapping[str, Any]) -> Iterable[str]:
    """Which share of it has a boundary, what has none, and kernels of one side only."""
    work = model.get("device_work")
    if work is None:
        return
    for side in SIDES:
        for rank, told in list(work[side].items())[:_RANKS_SHOWN]:
            yield f"{side} rank {_text(rank)}, with a boundary: {_text(device_words.of_side({rank: told}))}"
            for name, key in (("by operator", "operators"), ("by kernel", "kernels")) if told["watched"] else ():
                rows = [f"{row.get('operator') or row['name']} x{row['launches']}" for row in told[key][:_WORK_SHOWN]]
                if rows:
                    yield f"{side} rank {_text(rank)}, {name}: {_text(', '.join(rows), 1_200)}"
            for row in told["unattributed"][:_WORK_SHOWN] if told["watched"] else ():
                yield f"{side} rank {_text(rank)}, without a boundary: {_text(device_words.loose(row), 500)}"
    for row in work["one_sided"]:
        yield f"a lead: {_text(device_words.lead(row), 500)}"
    if work["one_sided_total"] > len(work["one_sided"]):
        yield f"and {work['one_sided_total'] - len(work['one_sided'])} more kernels of one side only"


def _semantic(model: Mapping[str, Any]) -> Iterable[str]:
    """How far both are equal at named boundaries, and the first that differs."""
    told = model.get("semantic")
    if told is None:
        return
    yield f"{_text(semantic_words.sentence(told), 600)}."
    first = told["first"]
    for side in SIDES if first is not None else ():
        place = first[side]
        where = "no place is recorded" if place is None else f"{place['file']}:{place['line']} in {place['function']}: {place['text']}"
        yield f"{side}: {_text(where)} ({_text(first['ids'][side])})"
    for fact in semantic_words.facts(told):
        yield f"{_text(fact, 600)}"
    yield "It stands beside the verdict, which is that of the operators, and changes nothing of it."


def _contract(contract: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    for item in contract[:_CONTRACT_SHOWN]:
        values = " against ".join(_text(item[side], 120) for side in SIDES)
        yield f"{_text(item['key'])} ({_text(item['severity'])}): {values}"


def _filters(filters: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    for rule in filters[:_FILTERS_SHOWN]:
        told = ", refused" if rule["refused"] else ""
        yield f"{_text(rule['id'])} hid {rule['hits']} differences{told}: {_text(rule['reason'])}"


def _reasons(model: Mapping[str, Any]) -> Iterable[str]:
    if model["limit"]:
        yield _text(model["limit"], 600)
    for reason in model["reasons"][:_REASONS_SHOWN]:
        yield f"{_text(reason['slug'])}: {_text(reason['text'], 600)}"


def _again(calls: Sequence[Mapping[str, str]]) -> Iterable[str]:
    for call in calls:
        note = f" ({_text(call['note'])})" if call["note"] else ""
        yield f"To {_text(call['what'])}: {_text(call['command'], 1_500)}{note}"


def _text(text: str, limit: int = _SHOWN) -> str:
    """One escaped line of bounded length."""
    flat = " ".join(text.split())
    return markdown(flat if len(flat) <= limit else f"{flat[: limit - 3]}...")
