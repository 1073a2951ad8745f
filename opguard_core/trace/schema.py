"""The authority on what a trace holds: Arrow schemas of its tables, and the row types the engines emit.

This is the seam between the training process and everything else. ``FORMAT.md`` explains it to readers; a test keeps
the two in step. Nothing here imports torch.

A trace directory::

    DIR/manifest.json                  run facts, contract, exit status, list of ranks
    DIR/sources/<sha256>.py.gz         the source text each run really executed, once per file
    DIR/rank-00000/manifest.json       engines, coverage, segment digests, drop counts, `complete`
    DIR/rank-00000/events-000000.arrow   (and slots-, stacks-, frames-, lifetimes-, launches-), numbered segments

Events and slots are ordered by ``seq``; the slots of one event stand together, inputs first, in the operator's argument
order. A segment pair ``events-N`` / ``slots-N`` covers the same range of ``seq``.
"""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa

from opguard_core.trace.version import FORMAT_VERSION as FORMAT_VERSION

_text = pa.dictionary(pa.int32(), pa.string())

EVENTS = pa.schema(
    [
        ("seq", pa.uint64()),  # per rank, dense from 0, in the order operators began
        ("kind", _text),  # ids.Kind
        ("operator", _text),  # "aten.addmm.default", "c10d.allreduce_.default", or an ids.Marker value
        ("t_host_ns", pa.int64()),  # monotonic clock at the call
        ("t_device_ns", pa.int64()),  # %globaltimer; null on CPU
        ("stream", pa.int64()),  # null on CPU
        ("thread", _text),  # lane: "main", or "Thread:<target qualname>", all pool workers of one target alike
        ("thread_index", pa.uint32()),  # distinct threads of one process, in order of first event
        ("collective_clock", pa.uint64()),  # collectives this rank had begun
        ("window", pa.uint32()),  # optimizer steps completed (by the counting optimizer) when the event began, plus offset
        ("microbatch", pa.uint32()),  # top-level backward calls completed since the last counted optimizer step
        ("phase", _text),  # ids.Phase
        ("module", _text),  # "blocks.3.attn.qkv", "" outside modules
        ("node", _text),  # autograd node name while its apply runs, else ""
        ("forward_seq", pa.int64()),  # backward events: seq of the forward event; null otherwise or unknown
        ("stack", pa.uint32()),  # row of STACKS; null when no Python frame was on the stack
        ("user_frame", pa.uint32()),  # innermost user frame, row of FRAMES
        ("library_frame", pa.uint32()),  # innermost non-user frame above it in the call, row of FRAMES; null if the user called
        ("args", _text),  # canonical text of the non-tensor arguments
        ("rng_stream", _text),  # generator consumed: "cpu", "cpu#1" (Generator objects by order of first use), "" if none
        ("rng_before", pa.uint64()),  # mix64 of that generator's state before the call; null if none
        ("grad_enabled", pa.bool_()),
    ]
)

SLOTS = pa.schema(
    [
        ("seq", pa.uint64()),  # the event
        ("slot", _text),  # "in.0", "in.2.1" (second of a list argument), "kw.mask", "out.0", "mut.0", "param:layer.weight"
        ("direction", _text),  # ids.Direction
        ("status", _text),  # ids.Status
        ("dtype", _text),  # "float32", "bfloat16", "int64", …
        ("shape", _text),  # "4,8"; "" for a scalar
        ("strides", _text),  # "8,1" in elements; "" for a scalar
        ("device", _text),  # "cpu", "cuda:0"
        ("storage", pa.uint32()),  # serial of the storage in this rank (never reused); null when it has none
        ("extent_lo", pa.uint64()),  # first byte of the storage the slot can touch
        ("extent_hi", pa.uint64()),  # one past the last; extent_hi - extent_lo == nbytes means dense
        ("version", pa.int64()),  # torch version counter; null when not tracked
        ("nbytes", pa.uint64()),  # logical bytes
        ("mix64", pa.uint64()),
        ("value64", pa.uint64()),
        ("bag64", pa.uint64()),
        ("xor32", pa.uint32()),
        ("trivial", pa.bool_()),
        ("name", _text),  # parameter name if the storage is a parameter, its gradient, a buffer or optimizer state, else ""
    ]
)

FRAMES = pa.schema(
    [
        ("frame", pa.uint32()),
        ("file", pa.string()),  # DESIGN 5: relative to the run's folder, else "<distribution>/path", else absolute
        ("category", _text),  # "user" | "library" | "torch" | "stdlib"
        ("function", pa.string()),  # code qualname (name on 3.10)
        ("line", pa.uint32()),
        ("end_line", pa.uint32()),
        ("column", pa.uint32()),  # UTF-8 byte columns as CPython gives them; 0..0 on 3.10 means the whole line
        ("end_column", pa.uint32()),
        ("lasti", pa.int32()),  # f_lasti: orders calls inside one code object
        ("text", pa.string()),  # the expression
        ("statement", pa.string()),  # the whole statement, dedented
        ("source", pa.string()),  # sha256 of the file's text, key into sources/; "" if unknown
    ]
)

STACKS = pa.schema([("stack", pa.uint32()), ("frames", pa.list_(pa.uint32()))])  # outermost first

LIFETIMES = pa.schema(
    [
        ("storage", pa.uint32()),
        ("nbytes", pa.uint64()),
        ("born_seq", pa.uint64()),  # event that first showed it
        ("dead_seq", pa.int64()),  # the storage was found freed at this event or earlier; null: alive at the last look before exit
    ]
)

LAUNCHES = pa.schema(
    [
        ("seq", pa.int64()),  # event that was in flight on the thread that submitted it; null: none was
        (
            "after",
            pa.int64(),
        ),  # without one: newest event of the rank that had been in flight before; null before the first
        (
            "order",
            pa.uint32(),
        ),  # among the rows of its event, or of those without one and equal `after`, by first sight
        ("kind", _text),  # ids.Work
        ("kernel", _text),  # mangled name; "" for copies, fills, graphs, and where the driver does not tell
        ("stream", pa.int64()),  # number as in EVENTS; null: a stream that no event ran on
        ("count", pa.uint64()),  # pieces of work that are alike in all of the above
        ("num_bytes", pa.uint64()),  # of copies and fills, all together; 0 where the call does not tell
        (
            "touches",
            pa.bool_(),
        ),  # without an event: whether it got, or may have got, an address inside a living storage
    ]
)

TABLES = {"events": EVENTS, "slots": SLOTS, "frames": FRAMES, "stacks": STACKS, "lifetimes": LIFETIMES, "launches": LAUNCHES}


class EventRow(NamedTuple):
    """One row of EVENTS, in column order; engines fill it, the writer turns columns into Arrow."""

    seq: int
    kind: str
    operator: str
    t_host_ns: int
    t_device_ns: int | None
    stream: int | None
    thread: str
    thread_index: int
    collective_clock: int
    window: int
    microbatch: int
    phase: str
    module: str
    node: str
    forward_seq: int | None
    stack: int | None
    user_frame: int | None
    library_frame: int | None
    args: str
    rng_stream: str
    rng_before: int | None
    grad_enabled: bool


class SlotRow(NamedTuple):
    """One row of SLOTS, in column order."""

    seq: int
    slot: str
    direction: str
    status: str
    dtype: str
    shape: str
    strides: str
    device: str
    storage: int | None
    extent_lo: int
    extent_hi: int
    version: int | None
    nbytes: int
    mix64: int
    value64: int
    bag64: int
    xor32: int
    trivial: bool
    name: str


class FrameRow(NamedTuple):
    """One row of FRAMES."""

    frame: int
    file: str
    category: str
    function: str
    line: int
    end_line: int
    column: int
    end_column: int
    lasti: int
    text: str
    statement: str
    source: str


class LifetimeRow(NamedTuple):
    """One row of LIFETIMES."""

    storage: int
    nbytes: int
    born_seq: int
    dead_seq: int | None


class LaunchRow(NamedTuple):
    """One row of LAUNCHES: pieces of device work that are alike."""

    seq: int | None
    after: int | None
    order: int
    kind: str
    kernel: str
    stream: int | None
    count: int  # type: ignore[assignment]  # a tuple has a method of that name, which nobody wants of a row
    num_bytes: int
    touches: bool | None
