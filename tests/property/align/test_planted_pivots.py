"""Claims: a planted difference is found at its very event and with its origin, under inserted, left out and swapped
operators on both sides; what changes no value is no difference; swapped sides give the mirrored answer."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opguard_core.certify.compare import compare
from tests.support.memory import MemoryTrace, MemoryWriter, memory_run
from tests.support.synthetic import Arguments, Corrupt, GptShape, Overwrite, Reseed, Side, emit_side, gpt, harmless_edits

settings.register_profile("planted", derandomize=True, deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow])
PROFILE = settings.get_profile("planted")

shapes = st.builds(
    GptShape,
    layers=st.integers(1, 2),
    steps=st.integers(1, 3),
    microbatches=st.integers(1, 2),
    dropout=st.booleans(),
    optimizer=st.sampled_from(["single", "fused"]),
    loader_thread=st.booleans(),
)
ORIGINS = {"corrupt": "operator", "arguments": "argument", "overwrite": "mutated", "reseed": "random-state"}


def run_of(side, *, mode="verify", stop=None):
    writer = MemoryWriter(mode=mode)
    emit_side(side, writer, mode=mode, stop=stop)
    return memory_run([MemoryTrace(writer, writer.close(ended="exit" if stop is None else "exception"))])


def planted(program, kind, at, choice):
    """One edit that changes a value, or None if that instruction cannot carry it."""
    instruction = program[at]
    if kind == "corrupt":
        return Corrupt(at)
    if kind == "arguments":
        # Where the first input is handed on unchanged, other arguments change nothing.
        return Arguments(at, "changed") if instruction.mutates or any(out.effect == "compute" for out in instruction.outs) else None
    if kind == "overwrite":
        return Overwrite(at, instruction.reads[choice % len(instruction.reads)]) if instruction.reads else None
    return Reseed(at, instruction.rng) if instruction.rng else None


def candidates(program):
    return [at for at in range(len(program)) if program[at].kind == "operator" and program[at].role not in ("marker", "log", "state")]


def around(program, seed, at):
    return [edit for edit in harmless_edits(program, seed) if at is None or abs(edit.at - at) > 1]


@pytest.mark.full
@PROFILE
@given(shapes, st.sampled_from(sorted(ORIGINS)), st.integers(0, 2**31), st.integers(0, 2**31))
def test_a_planted_difference_is_found_at_its_event(shape, kind, seed, choice):
    program = gpt(shape)
    places = candidates(program)
    at = places[choice % len(places)]
    edit = planted(program, kind, at, choice)
    if edit is None:
        return
    reference = Side(program, around(program, seed + 1, at))
    suspect = Side(program, sorted([*around(program, seed, at), edit], key=lambda other: other.at))
    verdict = compare(run_of(reference), run_of(suspect))
    assert verdict.verdict == "diverged"
    assert (verdict.pivot.seq.reference, verdict.pivot.seq.suspect) == (reference.seq_of(at), suspect.seq_of(at))
    assert ORIGINS[kind] in (verdict.pivot.origin, *verdict.pivot.origin_alternatives) or verdict.pivot.origin == "permutation"
    mirror = compare(run_of(suspect), run_of(reference))
    assert (mirror.pivot.seq.suspect, mirror.pivot.seq.reference) == (verdict.pivot.seq.reference, verdict.pivot.seq.suspect)
    assert mirror.pivot.origin == verdict.pivot.origin


@PROFILE
@given(shapes, st.integers(0, 2**31))
def test_edits_that_change_no_value_are_no_difference(shape, seed):
    program = gpt(shape)
    left, right = Side(program, harmless_edits(program, seed)), Side(program, harmless_edits(program, seed + 1))
    verdict = compare(run_of(left), run_of(right))
    assert (verdict.verdict, verdict.reasons, verdict.isolated) == ("identical", [], [])
    assert compare(run_of(right), run_of(left)).verdict == "identical"


@PROFILE
@given(shapes)
def test_a_run_is_identical_to_itself_in_every_mode(shape):
    program = gpt(shape)
    for mode in ("verify", "full"):
        verdict = compare(run_of(program, mode=mode), run_of(program, mode=mode))
        assert (verdict.verdict, verdict.reasons) == ("identical", [])
        assert verdict.compared["paired_share"] == {"reference": 1.0, "suspect": 1.0}
        assert verdict.compared["parameter_updates"] > 0


@PROFILE
@given(shapes, st.integers(0, 2**31), st.integers(0, 2**31))
def test_without_reading_inputs_again_a_silent_write_may_be_the_operator(shape, seed, choice):
    """Mode `full` carries digests: `mutated` cannot be proven, and the answer says so."""
    program = gpt(shape)
    places = [at for at in candidates(program) if program[at].reads]
    at = places[choice % len(places)]
    suspect = Side(program, [Overwrite(at, program[at].reads[0])])
    verdict = compare(run_of(program, mode="full"), run_of(suspect, mode="full"))
    if verdict.verdict == "diverged":
        assert verdict.pivot.seq.suspect == at
    else:
        assert verdict.verdict == "inconclusive" or program[at].role == "neutral"


@PROFILE
@given(shapes, st.floats(0.05, 0.95))
def test_a_crash_anywhere_compares_what_exists(shape, share):
    program = gpt(shape)
    stop = max(1, int(len(program) * share))
    verdict = compare(run_of(program), run_of(program, stop=stop))
    assert verdict.verdict == "inconclusive"
    assert verdict.pivot is None
    assert "ended-early" in [reason.slug for reason in verdict.reasons]
    assert np.isfinite(list(verdict.compared["paired_share"].values())).all()
