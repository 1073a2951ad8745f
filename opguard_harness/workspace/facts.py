"""Evidence resolved: the recorded fact that a reference names, read again from where it is stored, with a digest of it.

`data` is what the trace, the text or the file holds, unabridged and as the run wrote it; whoever shows it makes it safe to
show. `digest` is of that, so whoever cites it can tell later whether it is still the same.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opguard_core.errors import CorruptSegment, EvidenceNotFound, EvidenceStale, TraceFormatError
from opguard_core.evidence.refs import EventRef, JobRef, Ref, SourceRef, parse
from opguard_harness.access.untrusted import identifier, one_line
from opguard_harness.answer.plain import dumps
from opguard_harness.workspace.evidence import URI, Recorded, artefact, recorded, source_named, traces_of

if TYPE_CHECKING:
    from opguard_core.certify.places import Places
    from opguard_core.trace.reader import Run
    from opguard_core.trace.schema import FrameRow, SlotRow

STEP_EVENTS = 250_000
"""Events of a rank up to which a whole boundary says its step, which costs a pass over the trace; `.../step` always does."""

MAX_ARTEFACT_BYTES = 64 << 20
PART = "part"
_WORD = "0x{:016x}"
_DERIVED = ("place", "source", "step")
_QUOTE_CHARS = 160


@dataclass(frozen=True)
class Fact:
    """What a reference names.

    Attributes:
        id: The reference.
        kind: "boundary", "slot", one of the fields of a boundary, "source", "artefact" or "part" (of one).
        data: The fact itself.
        quote: It in one line, safe to show.
        digest: sha256 of the data, less what is only derived from it (the place that a comparison shows).
    """

    id: str
    kind: str
    data: dict[str, Any]
    quote: str
    digest: str

    @property
    def uri(self) -> str:
        """It as a resource."""
        return f"{URI}{self.id}"


def resolve(text: str, comparison: str = "") -> Fact:
    """Read the fact that a reference names.

    Args:
        text: The reference.
        comparison: The comparison it is about: only its traces are looked at, and places are those of its answer.

    Raises:
        EvidenceInvalid: The text is no reference.
        EvidenceNotFound: The fact is not recorded here.
        EvidenceStale: What held it was changed since.
        TraceFormatError: The trace cannot be read.
    """
    reference = parse(text)
    if isinstance(reference, EventRef):
        return _event(reference, comparison)
    return _source(reference, comparison) if isinstance(reference, SourceRef) else _artefact(reference)


def frame_of(found: Recorded, comparison: str = "") -> FrameRow | None:
    """The frame that a boundary's place is in; of a comparison, a changed library counts as the reader's concern."""
    event = found.event
    numbers = (-1 if number is None else number for number in (event.stack, event.user_frame, event.library_frame))
    return _places(found, comparison).frame(*numbers)


def lines_of(run: Run, frame: FrameRow) -> tuple[SourceRef, str] | None:
    """The lines of a frame's expression, and the whole text they are in; None where the trace does not hold them.

    Raises:
        EvidenceStale: The text was changed after it was stored.
    """
    try:
        text = run.source(frame.source)
    except CorruptSegment as error:
        raise EvidenceStale(f"A stored text is not what was recorded: {error.message}") from error
    except TraceFormatError:
        return None
    last = min(max(frame.line, frame.end_line), len(text.splitlines()))
    return (SourceRef(frame.source, frame.file, frame.line, last), text) if 1 <= frame.line <= last else None


def _places(found: Recorded, comparison: str) -> Places:
    from opguard_core.certify.places import ChangedFiles, Places
    from opguard_core.trace.reader import Run

    others = [trace for trace in dict.fromkeys(traces_of(comparison)) if trace != found.trace] if comparison else []
    rank = Run.open(others[0]).ranks.get(found.number) if others else None
    changed = ChangedFiles.of(found.rank, rank).changed if rank is not None else frozenset()
    return Places(found.rank, changed)


# -- a boundary --------------------------------------------------------------------------------------------------------


def _event(reference: EventRef, comparison: str) -> Fact:
    found = recorded(reference, comparison)
    event = found.event
    if not reference.part:
        data = _boundary(reference, found, comparison)
        return _fact(reference, "boundary", data, _line(event.operator))
    slot = next((slot for slot in found.slots if reference.names(slot.slot)), None)
    if slot is not None:
        data = {"operator": event.operator, **_slot(slot)}
        return _fact(reference, "slot", data, _slot_line(event.operator, slot))
    readers: dict[str, Callable[[], dict[str, Any]]] = {
        "operator": lambda: {"operator": event.operator},
        "place": lambda: {"place": _place(frame_of(found, comparison))},
        "phase": lambda: {"phase": event.phase},
        "step": lambda: {"step": _step(found), "window": event.window},
        "args": lambda: {"args": event.args},
        "random": lambda: _random(found) or {"random": None},
        "stack": lambda: {"stack": [_place(frame) for frame in _stack(found)]},
        "module": lambda: {"module": event.module, "node": event.node},
        "kernels": lambda: {"kernels": _kernels(found)},
    }
    reader = readers.get(reference.part)
    if reader is None:
        known = ", ".join(one_line(slot.slot, 40) for slot in found.slots[:12])
        raise EvidenceNotFound(
            f"Event {reference.seq} of rank {reference.rank} has no slot and no field of that name.",
            hint=f"Its slots: {known or 'none'}; `get_evidence` of the event itself shows all of it.",
        )
    data = reader()
    return _fact(reference, reference.part, data, _line(*(f"{name} {_brief(value)}" for name, value in data.items())))


def _boundary(reference: EventRef, found: Recorded, comparison: str) -> dict[str, Any]:
    event = found.event
    frame = frame_of(found, comparison)
    lines = None if frame is None else lines_of(found.run, frame)
    step = {"step": _step(found)} if found.rank.num_events <= STEP_EVENTS else {}
    more = {
        "module": event.module,
        "node": event.node,
        "args": event.args,
        "forward": "" if event.forward_seq is None else str(EventRef(reference.trace, reference.rank, event.forward_seq)),
        "source": "" if lines is None else str(lines[0]),
    }
    return {
        "event": event.kind,
        "operator": event.operator,
        "phase": event.phase,
        **step,
        "window": event.window,
        "microbatch": event.microbatch,
        "rank": reference.rank,
        "seq": event.seq,
        "thread": event.thread,
        "collectives_before": event.collective_clock,
        **{name: value for name, value in more.items() if value},
        **_random(found),
        "grad_enabled": event.grad_enabled,
        "place": _place(frame),
        "slots": [_slot(slot) for slot in found.slots],
    }


def _slot(slot: SlotRow) -> dict[str, Any]:
    """One slot; digests as hexadecimal words, for they have more bits than a JSON number."""
    known = slot.status in ("probed", "carried")
    digests = {name: _WORD.format(getattr(slot, name)) for name in ("mix64", "value64", "bag64")} if known else {}
    more = {"version": slot.version, "tensor": slot.name, "trivial": slot.trivial or None, "storage": slot.storage}
    return {
        "slot": slot.slot,
        "direction": slot.direction,
        "status": slot.status,
        "dtype": slot.dtype,
        "shape": _numbers(slot.shape),
        "strides": _numbers(slot.strides),
        "device": slot.device,
        "bytes": slot.nbytes,
        "extent": [slot.extent_lo, slot.extent_hi],
        **digests,
        **({"xor32": f"0x{slot.xor32:08x}"} if known else {}),
        **{name: value for name, value in more.items() if value not in (None, "")},
    }


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")] if text else []


def _slot_line(operator: str, slot: SlotRow) -> str:
    digest = f" mix64 {_WORD.format(slot.mix64)}" if slot.status in ("probed", "carried") else f" {slot.status}"
    return _line(operator, slot.slot, slot.dtype, f"[{slot.shape}]") + digest


def _random(found: Recorded) -> dict[str, Any]:
    """The generator that an event draws from, and its state before."""
    event = found.event
    if not event.rng_stream:
        return {}
    return {"random": {"stream": event.rng_stream, "before": None if event.rng_before is None else _WORD.format(event.rng_before)}}


def _kernels(found: Recorded) -> list[dict[str, Any]]:
    """What an event gave to its device, in order of first sight, under the names that were recorded."""
    from opguard_core.certify.devicework.kernels import is_watched
    from opguard_core.certify.devicework.names import work_name

    if not is_watched(found.rank):
        report = found.rank.manifest.engines.get("launches")
        why = report.get("reason") if isinstance(report, dict) else None
        raise EvidenceNotFound(
            f"No device work was recorded on rank {found.number}.",
            hint=f"The trace says: {one_line(str(why), 200)}." if why else "It is recorded where a program uses an NVIDIA device.",
        )
    return [
        {
            "name": work_name(row.kind, row.kernel),
            "kind": row.kind,
            "count": row.count,
            **({"stream": row.stream} if row.stream is not None else {}),
            **({"bytes": row.num_bytes} if row.num_bytes else {}),
            **({"recorded": row.kernel} if row.kernel else {}),
        }
        for row in found.rank.launches.of(found.event.seq)
    ]


def _step(found: Recorded) -> int:
    from opguard_core.align.steps import Steps

    wanted = (found.event.window, found.event.seq)
    return Steps(found.rank).of([wanted])[wanted]


def _stack(found: Recorded) -> list[FrameRow]:
    from opguard_core.certify.places import Places

    return Places(found.rank, frozenset()).frames(-1 if found.event.stack is None else found.event.stack)


def _place(frame: FrameRow | None) -> dict[str, Any] | None:
    from opguard_core.certify.places import place_of

    return None if frame is None else asdict(place_of(frame))


# -- source and artefacts ----------------------------------------------------------------------------------------------


def _source(reference: SourceRef, comparison: str) -> Fact:
    text, digest = source_text(reference, comparison)
    lines = text.splitlines()
    if reference.last > len(lines):
        raise EvidenceNotFound(f"{reference.digest}: the text has {len(lines)} lines, not {reference.last}.")
    data = {
        "file": reference.file,
        "digest": digest,
        "first": reference.first,
        "last": reference.last,
        "lines": lines[reference.first - 1 : reference.last],
    }
    return _fact(reference, "source", data, one_line(lines[reference.first - 1].strip(), _QUOTE_CHARS))


def source_text(reference: SourceRef, comparison: str = "") -> tuple[str, str]:
    """The whole text that a reference is about, and its digest.

    Raises:
        EvidenceNotFound: It is not stored, or the run executed no file of that name with it.
        EvidenceStale: It was changed since.
    """
    from opguard_core.trace.reader import Run

    trace, digest = source_named(reference, comparison)
    run = Run.open(trace)
    if not any(reference.names(file) for file in _files_of(run, digest)):
        raise EvidenceNotFound(f"src:{reference.digest}: the text is stored, under another file name.", hint="Take the id from a result.")
    try:
        return run.source(digest), digest
    except CorruptSegment as error:
        raise EvidenceStale(f"The stored text is not what was recorded: {error.message}") from error


def _files_of(run: Any, digest: str) -> set[str]:
    """Names under which a run executed a text."""
    found: set[str] = set()
    for rank in run.ranks.values():
        columns = rank.frames.columns
        found.update(columns["file"][columns["source"] == digest].tolist())
    return found


def _artefact(reference: JobRef) -> Fact:
    path = artefact(reference)
    size = path.stat().st_size
    if size > MAX_ARTEFACT_BYTES:
        raise EvidenceNotFound(f"{reference} has {size >> 20} MiB; evidence is read up to {MAX_ARTEFACT_BYTES >> 20}.")
    data = path.read_bytes()
    text = data.decode("utf-8", "backslashreplace")
    if reference.part:
        found = part_of(reference, text)
        return _fact(
            reference, PART, {"artefact": reference.artefact, "part": reference.part, **found}, _line(reference.part, dumps(found))
        )
    return Fact(str(reference), "artefact", {"bytes": len(data), "text": text}, _gist(path, text), hashlib.sha256(data).hexdigest())


def part_of(reference: JobRef, text: str) -> dict[str, Any]:
    """One field of an artefact: ``value``, or the two sides of one setting of an answer's contract.

    Raises:
        EvidenceNotFound: It has no such field; names those that it has.
    """
    held = fields_of(text)
    head, _, key = reference.part.partition(".")
    setting = next((item for item in held.get("contract", ()) if head == "contract" and reference.names(f"contract.{item['key']}")), None)
    if setting is not None:
        return dict(setting)
    name = next((name for name in held if reference.names(name)), None)
    if name is None:
        what = f"no difference of the setting {key[:80]!r}" if head == "contract" and key else "no field of that name"
        raise EvidenceNotFound(
            f"The {reference.artefact} of {reference.holder} has {what}.",
            hint=f"Its fields: {', '.join(map(str, list(held)[:24]))}; `compare_contracts` lists the settings that differ.",
        )
    return {"value": held[name]}


def fields_of(text: str) -> dict[str, Any]:
    """Fields of an artefact that is a JSON object; none of any other."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _gist(path: Path, text: str) -> str:
    """What an artefact says, in a few words of ours."""
    if path.suffix != ".json":
        return f"{len(text.splitlines())} lines"
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return "no JSON"
    verdict = value.get("verdict") if isinstance(value, dict) else None
    state = value.get("state") if isinstance(value, dict) else None
    return identifier(str(verdict or state or ""), f"{len(text)} characters")


def _fact(reference: Ref, kind: str, data: dict[str, Any], quote: str) -> Fact:
    core = {name: value for name, value in data.items() if name not in _DERIVED or kind == name}
    digest = hashlib.sha256(dumps(core).encode("ascii")).hexdigest()
    return Fact(str(reference), kind, data, quote, digest)


def _line(*parts: str) -> str:
    return one_line(" ".join(part for part in parts if part), _QUOTE_CHARS)


def _brief(value: Any) -> str:
    if isinstance(value, dict) and "file" in value:
        return f"{value['file']}:{value['line']} {value['text']}"
    if isinstance(value, list) and value and isinstance(value[0], dict) and "recorded" in value[0]:
        return ", ".join(f"{row['name']} x{row['count']}" for row in value)
    return value if isinstance(value, str) else dumps(value)
