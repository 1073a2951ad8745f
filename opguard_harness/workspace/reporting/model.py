"""The one object behind every form of a report: verdict, pivot, damage, spread, settings, limits, findings, and the trace.

Everything in it is read from the traces, or computed from them again, while it is made; texts that a program controls are on one
visible line each. Layouts add nothing to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from opguard_core import __version__
from opguard_core.evidence.refs import EventRef
from opguard_core.ids import SIDES
from opguard_core.trace.reader import Run
from opguard_harness.access.untrusted import identifier, one_line
from opguard_harness.answer.plain import plain
from opguard_harness.answer.ranks import reference_ranks
from opguard_harness.interface.declaration import Evidence
from opguard_harness.report.short import ORIGINS
from opguard_harness.workspace.case_report import CheckedVerdict
from opguard_harness.workspace.cases import Case
from opguard_harness.workspace.evidence import digest_of
from opguard_harness.workspace.findings import Finding
from opguard_harness.workspace.refusing import refused
from opguard_harness.workspace.reporting.again import again
from opguard_harness.workspace.reporting.around import CANDIDATE, FIRST, HARMLESS, near, pivot_row, trace
from opguard_harness.workspace.reporting.confidence import confidence
from opguard_harness.workspace.reporting.confirmed import confirmation
from opguard_harness.workspace.reporting.fed import feeders, meaning, told_slot
from opguard_harness.workspace.reporting.rows import NAME_CHARS, Ranks
from opguard_harness.workspace.reporting.tables import Tables

SCHEMA = 1
TEXT_CHARS = 300
CLAIM_CHARS = 1_200
_PLACE = ("file", "line", "function", "text")

Findings = Sequence[tuple[Finding, list[Evidence]]]


def report_model(case: Case, checked: CheckedVerdict, findings: Findings, written: str) -> dict[str, Any]:
    """Gather a report.

    Args:
        case: The case.
        checked: Its comparison's answer as computed now.
        findings: What was found out, each with what it cites as it is now.
        written: When, in UTC.

    Raises:
        ReportRefused: The traces do not bear out what the answer says.
        TraceFormatError: A trace cannot be read.

    Cost: opens both traces; pairs the window of the pivot.
    """
    answer = checked.answer
    traces = [Path(answer["trace"][side]) for side in SIDES]
    runs = (Run.open(traces[0]), Run.open(traces[1]))
    digests = (digest_of(traces[0]), digest_of(traces[1]))
    tables = Tables(runs)
    mapped = reference_ranks(answer)

    def ranks(boundary: Mapping[str, Any]) -> Ranks:
        return Ranks(runs, digests, (mapped.get(boundary["rank"], boundary["rank"]), boundary["rank"]))

    def told_pivot(pivot: Mapping[str, Any]) -> dict[str, Any]:
        told = _pivot(checked.comparison, pivot, pivot_row(ranks(pivot), tables, pivot, found), tables)
        fed = feeders(ranks(pivot), pivot)
        rows = None if found is None else (*found.rows, *found.beyond)
        means, look = meaning(pivot, fed, None if rows is None else sum(None in entry.seqs for entry in rows))
        return {**told, "means": means, "look": look, "fed": [{"what": what, **_reader(item, digests, mapped)} for what, item in fed]}

    named = [(what, ranks(boundary), boundary) for what, boundary in _named(answer)]
    pivot = answer["pivot"]
    centre = pivot or next((boundary for _, _, boundary in named if boundary.get("seq")), None)
    found, problem = near(ranks(centre), centre) if centre is not None else (None, "Nothing differs, so there is no place to show.")
    confirmed = confirmation(checked.comparison, answer)
    sides = {side: _side(runs[number], digests[number], answer, side) for number, side in enumerate(SIDES)}
    model = {
        "schema": SCHEMA,
        "tool": f"opguard-mcp {__version__}",
        "written": written,
        "case": {"id": case.id, "symptom": one_line(case.symptom, 2_000), "root": one_line(str(case.root), TEXT_CHARS)},
        "comparison": {
            "id": one_line(checked.comparison, TEXT_CHARS),
            "answer_sha256": checked.digest,
            "mode": answer["mode"],
            **sides,
        },
        "verdict": answer["verdict"],
        "pivot": None if pivot is None else told_pivot(pivot),
        "confirmation": confirmed,
        "confidence": confidence(answer, confirmed, sides, findings),
        "spread": None if not answer.get("spread") else _spread(answer["spread"], digests, mapped),
        "contract": [
            {"key": _text(item["key"]), "severity": item["severity"], **{side: _value(item[side]) for side in SIDES}}
            for item in answer["contract"]
        ],
        "filters": [
            {
                "id": _text(rule["id"]),
                "reason": _text(rule.get("reason", "")),
                "operator": _text(rule.get("operator", "")),
                "slot": _text(rule.get("slot", "")),
                "hits": rule["hits"],
                "refused": rule.get("refused", 0),
            }
            for rule in answer["filters"]
        ],
        "reasons": [{key: _text(reason[key], 600) for key in ("slug", "text", "fix")} for reason in answer["reasons"]],
        "limit": _text(str(answer["scope"].get("limit", "")), 600),
        "prefix": dict(answer["prefix"]),
        "compared": _texts(answer["compared"]),
        "scope": _texts({key: value for key, value in answer["scope"].items() if key != "limit"}),
        "coverage": _texts(answer["coverage"]),
        **({"device_work": _texts(answer["device_work"])} if "device_work" in answer else {}),
        **({"semantic": _semantic(answer["semantic"], digests, mapped)} if "semantic" in answer else {}),
        "findings": [_finding(item, cited) for item, cited in findings],
        "again": again(checked.comparison, case.id, answer, confirmed, runs),
        "trace": trace(tables, None if centre is None else (ranks(centre), centre, found), problem, named),
    }
    model.update(frames=tables.frames, stacks=tables.stacks, sources=tables.sources)
    rebuilt: dict[str, Any] = plain(model)
    return rebuilt


def _semantic(told: Mapping[str, Any], digests: tuple[str, str], mapped: Mapping[int, int]) -> dict[str, Any]:
    """Named boundaries; the first that differs with the ids of its events."""
    found: dict[str, Any] = _texts(told)
    first = told["first"]
    if first is not None:
        ranks = (mapped.get(first["rank"], first["rank"]), first["rank"])
        found["first"]["ids"] = {
            side: str(EventRef(digest, rank, first["seq"][side]["record"], first["slots"][0][side]["slot"] if first["slots"] else ""))
            for side, digest, rank in zip(SIDES, digests, ranks, strict=True)
        }
    return found


def _named(answer: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Differences of an answer beside its pivot, and what each is."""
    pivot = answer["pivot"]
    firsts = [item for item in answer["rank_firsts"] if pivot is None or item["rank"] != pivot["rank"]]
    return [
        *((FIRST, item) for item in firsts),
        *((CANDIDATE, item) for item in answer.get("candidates", [])),
        *((HARMLESS, item) for item in answer["isolated"]),
    ]


def _pivot(comparison: str, pivot: Mapping[str, Any], found: dict[str, Any], tables: Tables) -> dict[str, Any]:
    """The pivot; its place is that of the trace, and has to be that of the answer."""
    for side in SIDES:
        event, place = found[side], pivot[side]
        frame = None if event is None or event["frame"] is None else tables.frames[event["frame"]]
        told = None if place is None else [_place_text(place[key]) for key in _PLACE]
        if event is not None and told != (None if frame is None else [frame[key] for key in _PLACE]):
            raise refused(comparison, f"the {side}'s place of its pivot is not the one that the trace has")
    others = [{"origin": origin, "means": ORIGINS[origin]} for origin in pivot["origin_alternatives"]]
    return {
        **{key: _text(pivot[key], NAME_CHARS) for key in ("rank", "step", "microbatch", "phase", "operator", "slot", "thread")},
        "name": identifier(pivot["operator"], "an operator"),
        "tells": told_slot(pivot, found),
        "origin": pivot["origin"],
        "alternatives": others,
        "forward": {side: _line(pivot["forward"][side]) for side in SIDES} if pivot["forward"] else None,
        "boundary": found,
        **({"kernels": _texts(pivot["kernels"])} if "kernels" in pivot else {}),
    }


def _spread(spread: Mapping[str, Any], digests: tuple[str, str], mapped: Mapping[int, int]) -> dict[str, Any]:
    def told(item: Mapping[str, Any]) -> dict[str, Any]:
        return _reader(item, digests, mapped)

    return {
        "total": spread["total"],
        "whole": spread["whole"],
        "consumers": [told(item) for item in spread["consumers"]],
        "rejoined": None if spread["rejoined"] is None else told(spread["rejoined"]),
        "reached": [{"what": _text(what), **told(item)} for what, item in spread["reached"].items()],
        "state": [
            {"kind": _text(kind), "count": item["count"], "names": [_text(name, NAME_CHARS) for name in item["names"]]}
            for kind, item in spread["state"].items()
        ],
    }


def _reader(item: Mapping[str, Any], digests: tuple[str, str], mapped: Mapping[int, int]) -> dict[str, Any]:
    """One boundary of an answer with its evidence ids."""
    from opguard_core.evidence.refs import EventRef

    numbers = (mapped.get(item["rank"], item["rank"]), item["rank"])
    ids = {
        side: "" if item["seq"].get(side) is None else str(EventRef(digests[at], numbers[at], item["seq"][side]))
        for at, side in enumerate(SIDES)
    }
    more = {"slot": _text(item["slot"], NAME_CHARS), "results": item["results"]} if "results" in item else {"slot": "", "results": ""}
    return {
        "operator": _text(item["operator"], NAME_CHARS),
        **more,
        "ids": ids,
        **{side: "" if item[side] is None else _line(item[side]) for side in SIDES},
    }


def _side(run: Run, digest: str, answer: Mapping[str, Any], side: str) -> dict[str, Any]:
    """What one run was."""
    manifest = run.manifest
    return {
        "trace": _text(str(answer["trace"][side])),
        "digest": digest,
        "command": [_text(word) for word in manifest.argv[:40]],
        "folder": _text(manifest.user_root or manifest.cwd),
        "created": _text(manifest.created_utc, NAME_CHARS),
        "python": _text(manifest.python, NAME_CHARS),
        "platform": _text(manifest.platform, NAME_CHARS),
        "exit": answer["exit"].get(side),
        "ranks": sorted(run.ranks),
        "events": sum(rank.num_events for rank in run.ranks.values()),
        "reached": _reached(run, answer),
        "tensors": sum(rank.num_slots for rank in run.ranks.values()),
        "torn": any(rank.torn is not None for rank in run.ranks.values()),
    }


def _reached(run: Run, answer: Mapping[str, Any]) -> int:
    """Events that a side recorded up to the end of the last step that was compared.

    Cost: one pass over them.
    """
    last = max(answer["compared"]["steps"], default=-1)
    total = 0
    for rank in run.ranks.values():
        for table in rank.iter_windows():
            if table.window > last:
                break
            total += len(table.events["kind"])
    return total


def _finding(item: Finding, cited: list[Evidence]) -> dict[str, Any]:
    digests = {one.id: one.digest for one in item.evidence}
    return {
        "id": item.id,
        "claim": one_line(item.claim, CLAIM_CHARS),
        "basis": item.basis,
        "recorded": item.recorded,
        "unchecked": list(item.unchecked),
        "evidence": [{"id": one.id, "quote": one.quote, "digest": digests.get(one.id, "")} for one in cited],
    }


def _line(place: Mapping[str, Any] | None) -> str:
    if place is None:
        return ""
    return one_line(f"{place['file']}:{place['line']} in {place['function']}: {place['text']}", TEXT_CHARS)


def _place_text(value: Any) -> Any:
    from opguard_harness.workspace.reporting import tables

    return one_line(value, tables.TEXT_CHARS) if isinstance(value, str) else value


def _value(value: Any) -> str:
    """A setting: a text as it is, anything else as JSON."""
    from opguard_harness.answer.plain import dumps

    return one_line(value if isinstance(value, str) else dumps(value), TEXT_CHARS)


def _text(value: Any, limit: int = TEXT_CHARS) -> Any:
    return one_line(value, limit) if isinstance(value, str) else value


def _texts(value: Any) -> Any:
    """Plain values, every text and every key on one visible line; long lists as first, last and count."""
    if isinstance(value, dict):
        return {one_line(str(key), NAME_CHARS): _texts(item) for key, item in list(value.items())[:60]}
    if isinstance(value, list) and len(value) > 24:
        return {"first": _texts(value[0]), "last": _texts(value[-1]), "count": len(value)}
    return [_texts(item) for item in value] if isinstance(value, list) else _text(value)


__all__ = ["SCHEMA", "report_model"]
