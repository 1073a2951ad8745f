"""Synthetic traces for every test that reads one: no torch, no training, the planted difference known.

    from tests.support.synthetic import Corrupt, GptShape, Side, gpt, write_run

    program = gpt(GptShape(layers=2, steps=3))
    at = program.find(1, operator="aten.gelu.default")[0]        # an instruction of step 1
    write_run(tmp_path / "reference", program)
    write_run(tmp_path / "suspect", Side(program, [Corrupt(at)]))  # pivot: seq `at` on both sides, origin operator

Digests follow the dataflow, so both sides agree everywhere except at and downstream of a harmful edit. ``at`` is the
``seq`` on the unedited side; `Side.seq_of(at)` is the ``seq`` on the edited one, `Side.original_of()` maps all of them.
`harmless_edits` gives random edits that change no value. About 25 us of Python per event and side: 1 M events take half a
minute to write, so write once and reuse.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from opguard_core.engines.protocol import EventSink
from opguard_core.trace.manifest import RankManifest, RunManifest, write_manifest
from opguard_core.trace.writer import TraceWriter
from tests.support.edits import (
    Arguments,
    Become,
    Corrupt,
    Delete,
    Edit,
    Insert,
    Overwrite,
    Reseed,
    Side,
    Swap,
    depends,
    harmless_edits,
    swappable,
)
from tests.support.gpt import GptShape, gpt
from tests.support.instructions import Instruction, Out, Program, Site
from tests.support.launch_rows import Device, Watched
from tests.support.machine import Machine

__all__ = [
    "Arguments",
    "Become",
    "Corrupt",
    "Delete",
    "Edit",
    "GptShape",
    "Insert",
    "Instruction",
    "Machine",
    "Out",
    "Overwrite",
    "Program",
    "Reseed",
    "Side",
    "Site",
    "Swap",
    "depends",
    "emit_side",
    "gpt",
    "harmless_edits",
    "swappable",
    "write_rank",
    "write_run",
]


def emit_side(side: Program | Side, sink: EventSink, *, rank: int = 0, mode: str = "full", stop: int | None = None) -> int:
    """Execute a side and emit its events.

    Args:
        side: What to execute.
        sink: Receives the events.
        rank: Makes data and random streams differ between ranks.
        mode: "verify" probes every input, "full" carries them.
        stop: Stop after this many events, as a crash would.

    Returns:
        Number of events emitted.
    """
    whole = side if isinstance(side, Side) else Side(side)
    machine = Machine(sink, rank=rank, mode=mode, sources=source_texts(whole))
    for turn in whole.turns():
        if machine.seq == stop:
            break
        if turn.overwrite:
            machine.overwrite(turn.overwrite)
        if turn.reseed:
            machine.reseed(turn.reseed)
        if turn.skip:
            machine.skip(turn.instruction)
        else:
            machine.run(turn.instruction, corrupt=turn.corrupt)
    machine.finish()
    return machine.seq


def source_texts(side: Side) -> dict[str, str]:
    """The made-up source, by file: what each place says, on its line."""
    lines: dict[str, dict[int, str]] = {}
    for instruction in (*side.program.prologue, *side.program.body, *side.program.epilogue):
        for site in (instruction.site, instruction.library, *instruction.calls):
            place = side.renamed.get(site, site) if site is not None else None
            if place is not None:
                lines.setdefault(place.file, {})[place.line] = f"        {place.text}"
    return {file: "".join(f"{said.get(line, '')}\n" for line in range(1, max(said) + 1)) for file, said in lines.items()}


def write_rank(
    folder: Path, side: Program | Side, *, rank: int = 0, world_size: int = 1, mode: str = "full", **options: Any
) -> RankManifest:
    """Write one rank's trace through the real writer.

    Args:
        folder: Rank folder.
        side: What it executes.
        rank: Global rank.
        world_size: Number of ranks.
        mode: As `emit_side`.
        **options: ``stop`` as `emit_side`; ``ended``, ``engines``, ``coverage``, ``contract`` as `TraceWriter.close`; others
            as `TraceWriter`. ``launches``: a `Device`, or none.
    """
    stop = options.pop("stop", None)
    device: Device | None = options.pop("launches", None)
    closing = {name: options.pop(name) for name in ("engines", "coverage", "contract") if name in options}
    ended = options.pop("ended", "exit" if stop is None else "exception")
    writer = TraceWriter(folder, rank=rank, world_size=world_size, mode=mode, **options)
    watched = Watched(writer)
    emit_side(side, watched, rank=rank, mode=mode, stop=stop)
    if device is not None:
        watched.launch(device)
        closing["engines"] = {**closing.get("engines", {}), "launches": device.engine()}
    return writer.close(ended=ended, **closing)


def write_run(
    folder: Path,
    side: Program | Side,
    *others: Program | Side,
    mode: str = "full",
    manifest: Mapping[str, Any] | None = None,
    **options: Any,
) -> Path:
    """Write a whole run: one rank for each side given, and a finished run manifest.

    Args:
        folder: Run folder, made if absent.
        side: What rank 0 executes.
        *others: What further ranks execute.
        mode: As `emit_side`.
        manifest: Fields of the run manifest that differ from the defaults here.
        **options: As `write_rank`, for every rank.

    Returns:
        ``folder``.
    """
    sides = (side, *others)
    for rank, executed in enumerate(sides):
        write_rank(folder / f"rank-{rank:05d}", executed, rank=rank, world_size=len(sides), mode=mode, **options)
    fields: dict[str, Any] = {
        "created_utc": "2026-01-01T00:00:00Z",
        "argv": ["python", "train.py"],
        "cwd": "/work/run",
        "user_root": "/work/run",
        "mode": mode,
        "python": "3.11.0",
        "platform": "synthetic",
        "exit": {"code": 0, "signal": None},
        "ranks": list(range(len(sides))),
        "complete": True,
    }
    write_manifest(folder, RunManifest(**{**fields, **(manifest or {})}))
    return folder
