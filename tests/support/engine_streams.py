"""Runs a program under one engine or none, and says how two event streams differ.

What is compared: every column of every table, exactly, but for clocks (`CLOCKS`). Numbers of storages, stacks and frames are
given out in order of first sight, which is an order of the program: they are compared as they are. Threads that overlap have
no such order; their streams are compared thread by thread without numbers.

torch itself runs some backward formulas otherwise while any dispatch mode is active (`isTensorSubclassLike`; the commonest: where
gradients meet it adds out of place instead of in place). The dispatch engine is such a mode, the native one is not. So that both
look at the same operators, they are compared twice: both under an inert mode (`INERT`), where everything has to be equal; and as
they are used, where the few operators of `_stands_for` may stand for one another (`in_place`).
"""

from __future__ import annotations

import gc
import hashlib
import json
import re
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from opguard_core.capture.session import start
from opguard_core.engines.shims import own
from opguard_core.plan.config import RunConfig
from opguard_core.trace.schema import TABLES
from tests.support.capturing import left_over, own_gaps
from tests.support.engine_programs.catalogue import Program

ROOT = Path(__file__).resolve().parents[2]
CLOCKS = frozenset({"t_host_ns", "t_device_ns"})
# What numbers events, threads, storages, stacks and frames.
_NUMBERS = frozenset({"seq", "thread_index", "forward_seq", "stack", "user_frame", "library_frame", "storage"})
_NUMBERED = re.compile(r"(?<=\w)#\d+")  # models of one class are numbered in order of first call
_GENERATED = re.compile(r"<eval_with_key>\.\d+")  # torch numbers the code it generates, once per process
SHOWN_DIFFERENCES = 12

# The version of what is made inside torch's own C++ is one higher without a mode, and counts differ after an addition in place.
_TOLD = [column for column in TABLES["slots"].names if column not in ("storage", "version")]
_TOLD_INSTEAD = [column for column in _TOLD if column not in ("slot", "direction", "extent_lo", "extent_hi", "strides")]
INERT = "+inert"  # after the name of an engine: under an inert mode

Table = dict[str, list[Any]]


class Inert(TorchDispatchMode):
    """A mode that changes nothing, but is one."""

    supports_higher_order_operators = True


def _pass_on(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    return getattr(func, "_op", func)(*args, **(kwargs or {}))  # without torch's own Python frame around it


Inert.__torch_dispatch__ = own(_pass_on)


@dataclass
class Outcome:
    """What one run of a program came to.

    Attributes:
        result: What it returned, as bits.
        warned: Warnings with their places.
        random: Digest of torch's generator afterwards.
        tables: The trace, column by column; empty for a bare run.
        manifest: The rank's manifest, without the threads that other tests have left; empty for a bare run.
    """

    result: Any
    warned: list[tuple[str, str, int]]
    random: str
    tables: dict[str, Table] = field(default_factory=dict)
    manifest: dict[str, Any] = field(default_factory=dict)


def outcome(program: Program, engine: str | None, folder: Path, mode: str = "full", **options: Any) -> Outcome:
    """Run a program once.

    Args:
        program: What to run.
        engine: "dispatch" or "native", perhaps with `INERT`, or None to run it bare.
        folder: Absent; gets the trace.
        mode: One of ``ids.MODES``.
        options: More of `RunConfig`.
    """
    torch.manual_seed(0)
    torch.set_warn_always(True)
    gc.collect()
    gc.disable()  # when a cycle is freed must not depend on what an engine allocates
    inert = engine is not None and engine.endswith(INERT)
    left = left_over()
    session = _start(engine.removesuffix(INERT), folder, mode, program.steps, options) if engine else None
    if inert:
        torch._C._push_on_torch_dispatch_stack(Inert())
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            returned = program.run()
    finally:
        if inert:
            torch._C._pop_torch_dispatch_stack(None)
        if session is not None:
            session.stop("exit")
        gc.enable()
        torch.set_warn_always(False)
    random = digest(torch.get_rng_state())
    made = Outcome(bits(returned), [(str(w.message), w.filename, w.lineno) for w in caught], random)
    if session is not None:
        made.tables, made.manifest = read_tables(folder / f"rank-{options.get('rank', 0):05d}")
        coverage = made.manifest["coverage"]
        coverage["gaps"] = own_gaps(coverage.get("gaps", {}), left)
    return made


def _start(engine: str, folder: Path, mode: str, steps: tuple[int, int] | None, options: dict[str, Any]) -> Any:
    folder.mkdir(parents=True)
    plan = hashlib.sha256(repr((mode, steps)).encode()).hexdigest()
    return start(RunConfig(run_dir=folder, user_root=ROOT, mode=mode, steps=steps, plan_hash=plan, engine=engine, **options))


def read_tables(rank: Path) -> tuple[dict[str, Table], dict[str, Any]]:
    """All tables of one rank, and its manifest."""
    tables: dict[str, Table] = {}
    for name, schema in TABLES.items():
        parts = [pa.ipc.open_file(path).read_all() for path in sorted(rank.glob(f"{name}-*.arrow"))]
        tables[name] = {column: [value for part in parts for value in part.column(column).to_pylist()] for column in schema.names}
    tables["frames"]["file"] = [_GENERATED.sub("<eval_with_key>", file) for file in tables["frames"]["file"]]
    return tables, json.loads((rank / "manifest.json").read_text())


def digest(tensor: torch.Tensor) -> str:
    """Digest of a plain tensor's bytes."""
    return hashlib.sha256(tensor.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()[:16]


def bits(value: Any) -> Any:
    """A result as something that compares by its bits and prints well."""
    if isinstance(value, torch.Tensor):
        value = value.detach()
        if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.layout is not torch.strided or value.is_quantized:
            return str(value)
        value = value.resolve_conj().resolve_neg()
        content = value.reshape(-1).contiguous().view(torch.uint8).numpy().tobytes() if value.numel() else b""
        return str(value.dtype), tuple(value.shape), hashlib.sha256(content).hexdigest()[:16], str(value)[:80]
    if isinstance(value, dict):
        return {str(key): bits(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [bits(item) for item in value]
    if isinstance(value, float):
        return value.hex()
    return value if isinstance(value, bool | int | str | None) else str(value)


def differences(
    one: Outcome, other: Outcome, *, overlaps: bool = False, in_place: bool = False, limit: int = SHOWN_DIFFERENCES
) -> list[str]:
    """How the traces of two runs differ, as readable lines; empty if they say the same.

    Args:
        one: A run.
        other: Another run of the same program.
        overlaps: Its threads run side by side.
        in_place: The other ran without a mode (see `_stands_for`): such an event tells of its tensors what the first
            tells, and its result is the first's; from then on the storages of the two sides are matched, not equal.
        limit: Lines at most.
    """
    compare = _by_thread if overlaps else _in_place if in_place else _by_row
    found = list(_first(compare(one, other), limit))
    left, right = (_coverage(side) for side in (one, other))
    if left != right:
        found.append(f"coverage: {left} became {right}")
    return found


def _coverage(side: Outcome) -> Any:
    return side.manifest.get("coverage")


def _first(lines: Iterator[str], limit: int) -> Iterator[str]:
    for number, line in enumerate(lines):
        if number == limit:
            yield "..."
            return
        yield line


def _by_row(one: Outcome, other: Outcome) -> Iterator[str]:
    for name in ("events", "slots", "stacks", "frames", "lifetimes"):
        left, right = one.tables[name], other.tables[name]
        sizes = [len(next(iter(side.values()))) for side in (left, right)]
        if sizes[0] != sizes[1]:
            yield f"{name}: {sizes[0]} rows became {sizes[1]}"
        for row in range(min(sizes)):
            changed = [column for column in left if column not in CLOCKS and left[column][row] != right[column][row]]
            if changed:
                said = "; ".join(f"{column} {left[column][row]!r} became {right[column][row]!r}" for column in changed)
                yield f"{name}[{row}] {_what(one, name, row)}: {said}"


def _stands_for(without: str, under: str) -> bool:
    """Whether an operator is what torch uses without a mode for another that it uses under one, with the same bytes.

    In place where gradients meet, where attention adds its mask, in `isclose`; and AccumulateGrad keeps a sparse gradient itself.
    """
    head, _, overload = under.rpartition(".")
    sparse = "aten.clone.default", "aten._sparse_coo_tensor_with_dims_and_tensors.default"
    return without == f"{head}_.{overload}" or (under, without) == sparse


def _in_place(one: Outcome, other: Outcome) -> Iterator[str]:
    left, right = one.tables["events"], other.tables["events"]
    if len(left["seq"]) != len(right["seq"]):
        yield f"events: {len(left['seq'])} rows became {len(right['seq'])}"
    slots, others = _slots_of(one), _slots_of(other)
    same: dict[int | None, int | None] = {None: None}  # storages of the one by those of the other
    for row in range(min(len(left["seq"]), len(right["seq"]))):
        instead = _stands_for(right["operator"][row], left["operator"][row])
        free = CLOCKS | {"operator", "args"} if instead else CLOCKS
        for name in left:
            if name not in free and left[name][row] != right[name][row]:
                yield f"events[{row}] {_what(one, 'events', row)}: {name} {left[name][row]!r} became {right[name][row]!r}"
        mine, theirs = slots.get(row, []), others.get(row, [])
        if len(mine) != len(theirs):
            yield f"slots of events[{row}] {_what(one, 'events', row)}: {[s['slot'] for s in mine]} became {[s['slot'] for s in theirs]}"
        for a, b in zip(mine, theirs, strict=False):
            if instead and a["direction"] != "in":
                same[b["storage"]] = a["storage"]
            if same.setdefault(b["storage"], a["storage"]) != a["storage"]:
                yield f"{a['slot']} of events[{row}] {_what(one, 'events', row)}: storage {a['storage']} became {b['storage']}"
            looked = "metadata" not in (a["status"], b["status"])  # in mode trusted the two need not be trusted alike
            if {a["status"], b["status"]} == {"probed", "carried"}:
                b = {**b, "status": a["status"]}  # who has just written it need not read it again; the digests are compared
            for name in (_TOLD_INSTEAD if looked else ("dtype", "shape", "device")) if instead else _TOLD:
                if a[name] != b[name]:
                    yield f"{a['slot']} of events[{row}] {_what(one, 'events', row)}: {name} {a[name]!r} became {b[name]!r}"
    for name in ("stacks", "frames"):
        if one.tables[name] != other.tables[name]:
            yield f"{name} differ"


def _slots_of(side: Outcome) -> dict[int, list[dict[str, Any]]]:
    found: dict[int, list[dict[str, Any]]] = {}
    table = side.tables["slots"]
    for row, seq in enumerate(table["seq"]):
        found.setdefault(seq, []).append({name: values[row] for name, values in table.items()})
    return found


def _what(side: Outcome, name: str, row: int) -> str:
    table = side.tables[name]
    if name == "events":
        return f"{table['operator'][row]} ({table['phase'][row]}, {_text(side, table['user_frame'][row])})"
    if name == "slots":
        seq = table["seq"][row]
        return f"{table['slot'][row]} of {seq} {_what(side, 'events', seq) if seq < len(side.tables['events']['seq']) else ''}"
    return ""


def _text(side: Outcome, frame: int | None) -> str:
    return "" if frame is None else side.tables["frames"]["text"][frame]


def _by_thread(one: Outcome, other: Outcome) -> Iterator[str]:
    left, right = _told(one), _told(other)
    for thread in sorted(left.keys() | right.keys()):
        gone, new = left.get(thread, Counter()) - right.get(thread, Counter()), right.get(thread, Counter()) - left.get(thread, Counter())
        for sign, events in (("-", gone), ("+", new)):
            for event, count in events.items():
                yield f"{thread} {sign}{count} {event}"


def _told(side: Outcome) -> dict[str, Counter[str]]:
    """What each lane told, without numbers and without order: pool workers of one lane overlap, too."""
    events, slots = side.tables["events"], side.tables["slots"]
    of_event: dict[int, list[Any]] = {}
    for row, seq in enumerate(slots["seq"]):
        of_event.setdefault(seq, []).append(tuple(values[row] for name, values in slots.items() if name not in _NUMBERS))
    told: dict[str, Counter[str]] = {}
    for row, seq in enumerate(events["seq"]):
        facts = tuple(values[row] for name, values in events.items() if name not in _NUMBERS | CLOCKS)
        place = _text(side, events["user_frame"][row])
        told.setdefault(events["thread"][row], Counter())[_NUMBERED.sub("", repr((facts, place, of_event.get(seq))))] += 1
    return told


def engines_of(side: Outcome) -> dict[str, Any]:
    """What the manifest says of the engines that looked at operators: not who collects device work, nor what was compiled."""
    found: dict[str, Any] = side.manifest.get("engines", {})
    return {name: said for name, said in found.items() if name not in ("launches", "compiled")}
