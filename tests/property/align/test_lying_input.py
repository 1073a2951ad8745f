"""Claim: whatever stands in a trace, judging it ends in a verdict or in one TraceFormatError; it neither crashes nor hangs."""

# ruff: noqa: E501 - rows of many columns

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opguard_core.certify.answer import to_dict
from opguard_core.certify.compare import compare
from opguard_core.errors import TraceFormatError
from opguard_core.ids import VERDICTS, Direction, Kind, Phase, Status
from opguard_core.trace.schema import EventRow, FrameRow, LifetimeRow, SlotRow
from tests.support.memory import MemoryTrace, MemoryWriter, memory_run

settings.register_profile("lying", derandomize=True, deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
PROFILE = settings.get_profile("lying")

few = st.integers(0, 3)
operators = st.sampled_from(
    ["aten.add.Tensor", "aten.add_.Tensor", "aten.copy_.default", "aten._foreach_mul_.Scalar", "aten._local_scalar_dense.default", "c10d.x_", ""]
)  # fmt: skip
names = st.sampled_from(
    ["in.0", "in.1", "in.0.1", "in.0.99999999", "mut.0", "out.0", "out.0.1", "param:w", "optim:s", "grad:w", "", "kw.mask", "in..."]
)
shapes = st.sampled_from(["", "4,8", "8,4", "0", "99999999999999999999", "4,,", "x", "4611686018427387904,4", ",".join("1" * 70)])
kinds = st.sampled_from([*map(str, Kind), *["operator"] * 6])


@st.composite
def slots(draw, seq):
    lo = draw(st.sampled_from([0, 0, 8, 2**61]))
    return SlotRow(
        seq, draw(names), draw(st.sampled_from([str(word) for word in Direction])), draw(st.sampled_from([str(word) for word in Status])),
        draw(st.sampled_from(["float32", "bfloat16", "int64", "odd"])), draw(shapes), "", "cpu", draw(st.none() | few), lo,
        lo + draw(st.sampled_from([0, 16, 32, 2**61])), draw(st.none() | few), draw(st.sampled_from([0, 16, 32, 2**61])),
        draw(few), draw(few), draw(few), draw(few), draw(st.booleans()), draw(st.sampled_from(["", "param:w", "grad:w", "buffer:b", "optim:s"])),
    )  # fmt: skip


@st.composite
def traces(draw):
    writer = MemoryWriter(mode=draw(st.sampled_from(["verify", "full", "", "odd"])))
    for number in range(2):
        writer.frame(
            FrameRow(
                number, f"f{number}.py", draw(st.sampled_from(["user", "library", "torch", "?"])), "g", 1, 0, 0, 0, number, "t", "", "a"
            )
        )
    writer.stack(0, [0, 1])
    writer.stack(1, [])
    window = 0
    for seq in range(draw(st.integers(0, 12))):
        window += draw(st.sampled_from([0, 0, 0, 1]))
        frame = st.none() | st.integers(0, 1)
        writer.emit(
            EventRow(
                seq, draw(kinds), draw(operators), 0, None, None, draw(st.sampled_from(["main", "Thread:x"])), 0, draw(few), window, draw(few),
                draw(st.sampled_from([str(word) for word in Phase])), "", "", draw(st.none() | st.integers(0, 20)), draw(frame), draw(frame),
                draw(frame), draw(st.sampled_from(["", "a=1"])), draw(st.sampled_from(["", "cpu"])), draw(st.none() | few), True,
            ),
            draw(st.lists(slots(seq), max_size=4)),
        )  # fmt: skip
    for storage in draw(st.lists(few, max_size=3)):
        writer.lifetime(LifetimeRow(storage, 0, draw(few), draw(st.none() | st.integers(0, 20))))
    ended = draw(st.sampled_from(["exit", "exception", "signal", "unknown", "?"]))
    return MemoryTrace(
        writer, writer.close(ended=ended, coverage=draw(st.sampled_from([{}, {"gaps": 3}, {"gaps": {"a": {"touches_state": True}}}])))
    )


@PROFILE
@given(traces(), traces())
def test_any_rows_end_in_a_verdict_or_a_format_error(reference, suspect):
    try:
        answer = to_dict(compare(memory_run([reference]), memory_run([suspect])))
    except TraceFormatError:
        return
    assert answer["verdict"] in VERDICTS
    assert (answer["pivot"] is not None) == (answer["verdict"] == "diverged")
    assert answer["reasons"] or answer["verdict"] != "inconclusive"


@PROFILE
@given(traces(), traces())
def test_any_rows_give_mirrored_verdicts(reference, suspect):
    verdicts = []
    for sides in ((reference, suspect), (suspect, reference)):
        try:
            verdict = compare(*(memory_run([side]) for side in sides))
        except TraceFormatError:
            verdicts.append("error")
        else:
            verdicts.append(verdict.verdict)
    assert verdicts[0] == verdicts[1]


@PROFILE
@given(traces())
def test_no_trace_differs_from_itself(trace):
    try:
        verdict = compare(memory_run([trace]), memory_run([trace]))
    except TraceFormatError:
        return
    assert verdict.verdict != "diverged"
