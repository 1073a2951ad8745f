"""Tool `get_evidence`: the recorded fact that an evidence id names, read again from where it is stored."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from opguard_core.evidence.refs import EventRef, JobRef, SourceRef, parse
from opguard_harness.access.untrusted import fence, identifier, is_identifier
from opguard_harness.answer.plain import dumps
from opguard_harness.errors import InvalidArguments
from opguard_harness.interface.declaration import Evidence, Next, Result, Role, Tool, Truncated, argument
from opguard_harness.tools.budget import within
from opguard_harness.tools.shown import shown

if TYPE_CHECKING:
    from opguard_harness.workspace.facts import Fact

_PAGE_CHARS = 2_000
_ROWS_CHARS = 1_000  # of the slots of a boundary: an investigation looks at several
_TEXT_CHARS = 600
_VALUE_CHARS = 120
_NAME_CHARS = 60
_FIELDS_SHOWN = 40
_STACK = "stack"
_SLOTS = "slots"
_KERNELS = "kernels"
_KERNEL_CHARS = 600  # of a recorded name, whose short form is beside it
_ITEMS = {_SLOTS: "slots", _STACK: "frames", _KERNELS: "kernels"}


@dataclass(frozen=True)
class GetEvidenceArguments:
    id: str = argument("An id from `evidence` of a result: ev:, src: or job:.", max_length=500)
    comparison: str = argument("The comparison it is about; looks at its traces only.", "", role=Role.STORED)
    cursor: str = argument("`cursor` of the previous answer.", "", pattern=r"^(\d{1,12})?$")


@dataclass(frozen=True, kw_only=True)
class GetEvidenceResult(Result):
    """``fact``: what is recorded, slots in brief (``<id>/<slot>`` is all of one). ``text``: of the program. ``digest``: of it all."""

    sparse = True

    id: str
    kind: str
    digest: str
    fact: dict[str, Any] = field(default_factory=dict)
    text: str = ""


def get_evidence(arguments: GetEvidenceArguments) -> GetEvidenceResult:
    """Resolve one id."""
    from opguard_harness.workspace.facts import resolve

    reference = parse(arguments.id)
    fact = resolve(arguments.id, arguments.comparison)
    first = int(arguments.cursor or 0)
    if isinstance(reference, EventRef):
        return _boundary(fact, reference, first, arguments.comparison)
    if isinstance(reference, SourceRef):
        return _source(fact, reference, first, arguments.comparison)
    return _artefact(fact, reference, first)


def _boundary(fact: Fact, reference: EventRef, first: int, comparison: str) -> GetEvidenceResult:
    """A boundary, or a part of one; the slots of a boundary and the frames of a stack are paged."""
    data = dict(fact.data)
    paged = next((name for name in _ITEMS if isinstance(data.get(name), list)), "")
    cut = None
    if paged:
        rows = data[paged]
        _require_inside(first, len(rows), _ITEMS[paged])
        brief = [_slot_in_brief(row) for row in rows] if paged == _SLOTS else rows
        chars = _KERNEL_CHARS if paged == _KERNELS else _TEXT_CHARS // 4
        page = within(shown(brief[first:], chars), _ROWS_CHARS) or shown(brief[first : first + 1], chars)
        end = first + len(page)
        cut = Truncated(len(page), len(rows), str(end)) if end < len(rows) else None
        data[paged] = page
    rest = {name: data[name] if name == paged else shown(value, _TEXT_CHARS) for name, value in data.items()}
    whole = str(EventRef(reference.trace, reference.rank, reference.seq))
    cited = [Evidence(fact.id, fact.uri, fact.quote)]
    following = []
    if fact.kind == "boundary" and data.get("source"):
        given = {"evidence": whole, **({"run": comparison} if comparison else {})}
        following = [Next("show_source", given, "the code around it, as it ran")]
    elif fact.kind != "boundary":
        following = [Next("get_evidence", {"id": whole, **({"comparison": comparison} if comparison else {})}, "the whole boundary")]
    return GetEvidenceResult(
        summary=_said(fact, reference),
        id=fact.id,
        kind=fact.kind,
        digest=fact.digest,
        fact=rest,
        evidence=cited,
        next=following,
        truncated=cut,
    )


def _slot_in_brief(slot: dict[str, Any]) -> dict[str, Any]:
    """A slot among others; its own id shows all of it."""
    kept = ("slot", "dtype", "shape", "mix64", "tensor")
    return {
        **{key: slot[key] for key in kept if slot.get(key) not in (None, "")},
        **({} if "mix64" in slot else {"status": slot["status"]}),
    }


def _said(fact: Fact, reference: EventRef) -> str:
    """The fact in a sentence of ours."""
    where = f"event {reference.seq} of rank {reference.rank}"
    if fact.kind == "boundary":
        operator = identifier(fact.data["operator"], "an operator")
        step = f", step {fact.data['step']}" if "step" in fact.data else ""
        return f"{where.capitalize()}: {operator}, {fact.data['phase']}{step}, {len(fact.data[_SLOTS])} slots."
    if fact.kind == "slot":
        name = identifier(fact.data["slot"], "a slot")
        return f"{name} of {where}: {fact.data['dtype']}, {fact.data['bytes']} bytes, {fact.data['status']}."
    return f"The {fact.kind} of {where}."


def _source(fact: Fact, reference: SourceRef, first: int, comparison: str) -> GetEvidenceResult:
    """Lines of source, numbered and fenced."""
    lines = fact.data["lines"]
    _require_inside(first, len(lines), "lines")
    numbered = [f"{reference.first + at} {line[:_TEXT_CHARS]}" for at, line in enumerate(lines[first:], first)]
    page = within(numbered, _PAGE_CHARS) or numbered[:1]
    end = first + len(page)
    given = {"evidence": fact.id, **({"run": comparison} if comparison else {})}
    return GetEvidenceResult(
        summary=f"Lines {reference.first + first} to {reference.first + end - 1} of a source text that was executed.",
        id=fact.id,
        kind=fact.kind,
        digest=fact.digest,
        fact=shown({"file": fact.data["file"], "text_digest": fact.data["digest"]}),
        text=fence("\n".join(page), "source", limit_chars=2 * _PAGE_CHARS, line_chars=_TEXT_CHARS).text,
        evidence=[Evidence(fact.id, fact.uri, fact.quote)],
        next=[Next("show_source", given, "the lines around them")],
        truncated=Truncated(len(page), len(lines), str(end)) if end < len(lines) else None,
    )


def _artefact(fact: Fact, reference: JobRef, first: int) -> GetEvidenceResult:
    """What a job left: a page of a text, fenced; of a record its fields in brief."""
    from opguard_harness.workspace.facts import fields_of

    if reference.part:
        return _field(fact, reference, first)
    fields = fields_of(fact.data["text"])
    if fields and not first:
        return _fields(fact, reference, fields)
    text = fact.data["text"]
    _require_inside(first, len(text), "characters")
    end = first + _PAGE_CHARS
    if end < len(text):
        end = text.rfind("\n", first, end) + 1 or end  # whole lines: a secret that a page cut in two would not look like one
    page = text[first:end]
    end = first + len(page)
    following = (
        [Next("first_difference", {"comparison": reference.holder}, "what it says, in brief")] if reference.artefact == "answer" else []
    )
    return GetEvidenceResult(
        summary=f"The {reference.artefact} of {reference.holder}: {len(text)} characters.",
        id=fact.id,
        kind=fact.kind,
        digest=fact.digest,
        fact={"artefact": reference.artefact, "bytes": fact.data["bytes"]},
        text=fence(page, "log" if reference.artefact == "log" else "stored record", limit_chars=_PAGE_CHARS).text,
        evidence=[Evidence(fact.id, fact.uri, fact.quote)],
        next=following,
        truncated=Truncated(len(page), len(text), str(end)) if end < len(text) else None,
    )


def _fields(fact: Fact, reference: JobRef, fields: dict[str, Any]) -> GetEvidenceResult:
    """The fields of a record, each as its value where that is short; any of them is evidence of its own."""
    told = {str(name)[:_NAME_CHARS]: value for name, value in list(fields.items())[:_FIELDS_SHOWN]}
    long = [name for name, value in told.items() if len(dumps(value)) > _VALUE_CHARS]
    brief = {name: _size(value) if name in long else value for name, value in told.items()}
    following = []
    if reference.artefact == "answer":
        following.append(Next("first_difference", {"comparison": reference.holder}, "what it says, in brief"))
    for name in [name for name in long if is_identifier(name)][:1]:
        part = str(JobRef(reference.holder, reference.artefact, name))
        following.append(Next("get_evidence", {"id": part}, f"its field {name}; likewise the others"))
    return GetEvidenceResult(
        summary=f"The {reference.artefact} of {reference.holder}: {len(fields)} fields; <id>/<field> is all of one.",
        id=fact.id,
        kind=fact.kind,
        digest=fact.digest,
        fact={"artefact": reference.artefact, "bytes": fact.data["bytes"], "fields": shown(brief, _TEXT_CHARS // 4)},
        evidence=[Evidence(fact.id, fact.uri, fact.quote)],
        next=following,
    )


def _size(value: Any) -> str:
    if isinstance(value, str):
        return f"{len(value)} characters"
    return f"{len(value)} {'fields' if isinstance(value, dict) else 'items'}"


def _field(fact: Fact, reference: JobRef, first: int) -> GetEvidenceResult:
    """One field of a record: as it is where it is short, else page by page."""
    told = {name: value for name, value in fact.data.items() if name not in ("artefact", "part")}
    short = len(dumps(told)) <= _ROWS_CHARS
    text = "" if short else dumps(told.get("value", told), indent=1)
    _require_inside(first, max(len(text), 1), "characters")
    end = first + _PAGE_CHARS
    if end < len(text):
        end = text.rfind("\n", first, end) + 1 or end
    page = text[first:end]
    end = first + len(page)
    name = identifier(reference.part, "a field")
    return GetEvidenceResult(
        summary=f"{name[:1].upper()}{name[1:]} of the {reference.artefact} of {reference.holder}.",
        id=fact.id,
        kind=fact.kind,
        digest=fact.digest,
        fact={"artefact": reference.artefact, "part": shown(reference.part), **(shown(told, _TEXT_CHARS) if short else {})},
        text=fence(page, "stored record", limit_chars=_PAGE_CHARS).text if page else "",
        evidence=[Evidence(fact.id, fact.uri, fact.quote)],
        next=_after_field(reference),
        truncated=Truncated(len(page), len(text), str(end)) if end < len(text) else None,
    )


def _after_field(reference: JobRef) -> list[Next]:
    if reference.artefact != "answer":
        return []
    if reference.part.startswith("contract"):
        return [Next("compare_contracts", {"comparison": reference.holder}, "all settings that differ")]
    return [Next("first_difference", {"comparison": reference.holder}, "what the answer says, in brief")]


def _require_inside(first: int, count: int, what: str) -> None:
    """Refuse a cursor that no answer gave."""
    if first and first >= count:
        raise InvalidArguments(f"get_evidence: cursor {first} lies beyond the {count} {what}.", hint="Leave the cursor out to start over.")


TOOLS = (
    Tool(
        name="get_evidence",
        group="evidence",
        text="Show the recorded fact that an evidence id names: a boundary with every slot and digest, one slot, source lines, or "
        "what a job left. Use it to check a claim; the digest tells later whether the fact is still the same.",
        arguments=GetEvidenceArguments,
        result=GetEvidenceResult,
        run=get_evidence,
        read_only=True,
    ),
)
