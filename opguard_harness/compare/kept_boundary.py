"""The first difference in full: what both replays kept of it, described, and rebuilt as a program of one file.

damage.json                 what differs, slot by slot
kept.json                   the kept files and the evidence ids that they are of
repro.py, repro.safetensors the boundary rebuilt, unless kept.json says why not
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opguard_core.errors import EvidenceNotFound, ReproRefused, TraceFormatError
from opguard_core.evidence.damage import Damage
from opguard_core.evidence.kept_pair import (
    DIFFERENT,
    EQUAL,
    MISMATCH,
    Compared,
    Digests,
    compare_kept,
    document,
    effect_of,
    main_of,
    telling_slot,
)
from opguard_core.evidence.refs import EventRef
from opguard_core.evidence.repro import DATA, SCRIPT, Captured, write_repro
from opguard_core.ids import SIDES
from opguard_core.plan.config import rank_folder
from opguard_core.plan.keeping import LIMIT_BYTES, Keep, kept_file
from opguard_core.trace.boundary import key_of
from opguard_core.trace.files import write_atomic
from opguard_core.trace.identity import trace_digest
from opguard_core.trace.kept import Kept, read_kept
from opguard_core.trace.reader import Run
from opguard_harness.answer.plain import dumps
from opguard_harness.answer.ranks import rank_on
from opguard_harness.compare.replay import place_of

DAMAGE_FILE, KEPT_FILE = "damage.json", "kept.json"
MAX_SLOTS_LISTED = 512
Answer = Mapping[str, Any]


@dataclass(frozen=True)
class Described:
    """What a replay kept of a boundary.

    Attributes:
        damage: In brief: ``slot``, ``class``, ``rule``, counts; empty where nothing was kept.
        text: It in a few words of ours.
        files: Which of the files of this module were written.
        refused: Why there is no `repro.py`; empty if there is one, or nothing was kept.
        why: Why nothing was kept, or a slot could not be compared; else empty.
    """

    damage: dict[str, Any] = field(default_factory=dict)
    text: str = ""
    files: tuple[str, ...] = ()
    refused: str = ""
    why: str = ""


def rank_of(answer: Answer, side: str) -> int:
    """The rank of one side of the first difference."""
    return rank_on(answer, side, answer["pivot"]["rank"])


def runs_alone(answer: Answer) -> bool:
    """Whether one side alone runs the boundary of the first difference."""
    return sum(answer["pivot"]["seq"].get(side) is None for side in SIDES) == 1


def asked(answer: Answer, traces: Mapping[str, Path]) -> dict[str, Keep]:
    """What each side is to keep so that the first difference of an answer is there in full.

    Args:
        answer: It has a pivot.
        traces: Where the answer's traces lie.

    Returns:
        By side; a side that has no such boundary, or whose trace does not tell, is missing.
    """
    found = {}
    for side in SIDES:
        seq = answer["pivot"]["seq"].get(side)
        rank = None if seq is None else Run.open(traces[side]).ranks.get(rank_of(answer, side))
        if seq is None or rank is None:
            continue
        try:
            found[side] = Keep((key_of(rank, rank_of(answer, side), seq),), LIMIT_BYTES)
        except EvidenceNotFound:
            continue  # a state at the end of a step has no operator to keep
    return found


def holds(answer: Answer, traces: Mapping[str, Path]) -> bool:
    """Whether the traces of a replay kept the first difference of its own answer, on each side that has it."""
    wanted = {side: seq for side in SIDES if (seq := answer["pivot"]["seq"].get(side)) is not None}
    kept = {side: kept_of(traces[side], rank_of(answer, side)) for side in wanted}
    return bool(wanted) and all((one := kept[side]) is not None and one.seq == seq for side, seq in wanted.items())


def describe_kept(first: Answer, again: Answer, traces: Mapping[str, Path], folder: Path) -> Described:
    """Compare what both replays kept, and write the files.

    Args:
        first: The answer that was to be confirmed; it has a pivot.
        again: The replay's own.
        traces: Where the replay's traces lie now.
        folder: The result folder, where they lie inside of; gets the files.
    """
    about = again if again["pivot"] is not None else first
    ranks = {side: rank_of(about, side) for side in SIDES}
    try:
        kept = tuple(kept_of(traces[side], ranks[side]) for side in SIDES)
    except TraceFormatError as error:
        return Described(why=error.message)
    reference, suspect = kept
    if reference is None and suspect is None:
        return Described(why=_unkept(traces, ranks))
    runs = {side: Run.open(traces[side]) for side in SIDES}
    recorded = tuple(digests_of(runs[side], ranks[side], one) for side, one in zip(SIDES, kept, strict=True))
    compared = compare_kept((reference, suspect), (recorded[0], recorded[1]), alone=runs_alone(about))
    slot = str(about["pivot"].get("slot") or "")
    write_atomic(folder / DAMAGE_FILE, _json(document((reference, suspect), compared, slot, alone=runs_alone(about))))
    cited = _cited(first, again, traces, ranks, (reference, suspect))
    refused = _repro(folder, (reference, suspect), {side: ids[-1] for side, ids in cited.items()}, runs, ranks)
    write_atomic(folder / KEPT_FILE, _json(_listing(folder, traces, ranks, (reference, suspect), cited, refused)))
    main, effect = main_of(compared, telling_slot((reference, suspect), slot)), effect_of((reference, suspect))
    files = (DAMAGE_FILE, KEPT_FILE, *(() if refused else (SCRIPT, DATA)))
    alone = [side for side, one in zip(SIDES, kept, strict=True) if one is not None]
    if len(alone) == 1 and not runs_alone(about):
        rule = f"the {alone[0]} alone kept this boundary, so there was nothing to compare it with"
        return Described(
            {"class": "unknown", "rule": rule}, f"only the {alone[0]} kept the boundary", files, refused, _unkept(traces, ranks)
        )
    if len(alone) == 1:
        damage = None if effect is None else effect[1]
        told = f"; its effect: {damage.likely}" if damage is not None else ""
        return Described(_alone(alone[0], damage), f"only the {alone[0]} runs it{told}", files, refused)
    return Described(_brief(compared, main), _text(compared, main), files, refused, "" if main is None else main.why)


def kept_of(trace: Path, rank: int) -> Kept | None:
    """What a run kept of the one boundary that it was asked for; None if that is nothing."""
    path = trace / rank_folder(rank) / kept_file(0)
    return read_kept(path) if path.exists() else None


def _unkept(traces: Mapping[str, Path], ranks: Mapping[str, int]) -> str:
    """What the manifests say about a boundary that was asked for and is not there."""
    said = []
    for side in SIDES:
        rank = Run.open(traces[side]).ranks.get(ranks[side])
        if (traces[side] / rank_folder(ranks[side]) / kept_file(0)).exists():
            continue
        note = rank.manifest.extra.get("kept") if rank is not None else None
        entry = note.get(kept_file(0)) if isinstance(note, Mapping) else None
        reason = entry.get("reason") if isinstance(entry, Mapping) else None
        said.append(f"{side}: {reason or 'this boundary has no tensors that can be kept, or did not occur'}")
    return "; ".join(said)


def digests_of(run: Run, rank: int, kept: Kept | None) -> Digests:
    """Digests that the trace has of the slots of a kept boundary."""
    found = None if kept is None or rank not in run.ranks else run.ranks[rank].event_at(kept.seq)
    return {} if found is None else {slot.slot: slot.mix64 for slot in found[1] if slot.status in ("probed", "carried")}


def _cited(
    first: Answer, again: Answer, traces: Mapping[str, Path], ranks: Mapping[str, int], kept: tuple[Kept | None, Kept | None]
) -> dict[str, list[str]]:
    """Evidence ids of the boundary: of the comparison's own trace, where that is still there, and of the replay's."""
    found: dict[str, list[str]] = {}
    for side, one in zip(SIDES, kept, strict=True):
        if one is None:
            continue
        ids = [str(EventRef(trace_digest(traces[side]), ranks[side], one.seq))]
        same = again["pivot"] is None or place_of(again["pivot"]) == place_of(first["pivot"])
        seq = first["pivot"]["seq"].get(side)
        if same and seq is not None and Path(first["trace"][side]).is_dir():
            ids.insert(0, str(EventRef(trace_digest(Path(first["trace"][side])), rank_of(first, side), seq)))
        found[side] = ids
    return found


def _repro(
    folder: Path, kept: tuple[Kept | None, Kept | None], cited: Mapping[str, str], runs: Mapping[str, Run], ranks: Mapping[str, int]
) -> str:
    """Write the program of one file; returns why not, if it cannot be."""
    sides = tuple(
        None if one is None else Captured(one, cited[side], runs[side].ranks[ranks[side]].manifest.contract)
        for side, one in zip(SIDES, kept, strict=True)
    )
    try:
        write_repro(folder, (sides[0], sides[1]))
    except ReproRefused as error:
        return error.message
    return ""


def _listing(
    folder: Path,
    traces: Mapping[str, Path],
    ranks: Mapping[str, int],
    kept: tuple[Kept | None, Kept | None],
    cited: Mapping[str, list[str]],
    refused: str,
) -> dict[str, Any]:
    """The kept files, so that a citation of this list holds them."""
    files = {}
    for side, one in zip(SIDES, kept, strict=True):
        if one is None:
            continue
        path = traces[side] / rank_folder(ranks[side]) / kept_file(0)
        slots = {
            name: {"dtype": slot.dtype, "shape": list(slot.shape), "bytes": slot.nbytes, "mix64": slot.kept_mix64}
            for name, slot in list(one.known.items())[:MAX_SLOTS_LISTED]
            if not slot.reason
        }
        files[side] = {"file": str(path.relative_to(folder)), "seal": one.seal, "slots": slots, "left_out": dict(one.left_out)}
    return {
        "format": 1,
        "events": dict(cited),
        "files": files,
        "repro": {"refused": refused} if refused else {"script": SCRIPT, "data": DATA},
    }


def _brief(compared: list[Compared], main: Compared | None) -> dict[str, Any]:
    """The damage in some hundred characters."""
    if main is None:
        equal = sum(one.state == EQUAL for one in compared)
        rule = (
            "all kept bytes of both sides are equal"
            if equal == len(compared)
            else f"{equal} of {len(compared)} slots are equal, the others are not there in full"
        )
        return {"class": "none" if equal == len(compared) else "unknown", "rule": rule, "slots_compared": equal}
    counts = {"slots_compared": len(compared), "slots_differing": sum(one.state == DIFFERENT for one in compared)}
    checked = {"fingerprinted_again_by": sorted({name for check in main.again.values() for name in check.mix64})}
    if main.damage is None:
        return {"slot": main.slot, "class": "unknown", "rule": main.why, **counts, **checked}
    return {"slot": main.slot, **main.damage.brief(), **counts, **checked}


def _alone(side: str, damage: Damage | None) -> dict[str, Any]:
    """What an operator does that one side alone runs."""
    rule = f"only the {side} runs this operator"
    if damage is None:
        return {"only": side, "class": "unknown", "rule": rule}
    brief = damage.brief()
    return {**brief, "only": side, "rule": f"{rule}; its result against its own in.0: {brief['rule']}"}


def _text(compared: list[Compared], main: Compared | None) -> str:
    """The damage in a sentence without names of the run's."""
    if any(one.state == MISMATCH for one in compared) and (main is None or main.damage is None):
        return "the bytes that were kept are not the ones that were fingerprinted, so they were not compared"
    if main is None:
        equal = sum(one.state == EQUAL for one in compared)
        rest = len(compared) - equal
        return (
            f"the bytes of all {equal} kept tensors are equal"
            if not rest
            else f"{equal} kept tensors are equal, {rest} are not there in full"
        )
    if main.damage is None:
        return "a tensor could not be compared byte by byte"
    damage = main.damage
    if damage.differing is None:
        return f"damage: {damage.likely}"
    unit = {"ulp": " ULP", "difference": ""}.get(damage.distance.get("unit", ""), "")
    most = f", at most {damage.distance['max']}{unit} apart" if damage.distance else ""
    return f"damage: {damage.likely}, {damage.differing} of {damage.elements} elements{most}"


def _json(value: Any) -> bytes:
    return f"{dumps(value, indent=1)}\n".encode("ascii")
