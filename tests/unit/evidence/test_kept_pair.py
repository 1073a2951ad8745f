"""Kept boundaries are fingerprinted again before they are compared; what does not fit is said and is no comparison."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from opguard_core.evidence import fingerprint_again
from opguard_core.evidence.fingerprint_again import again
from opguard_core.evidence.kept_pair import DIFFERENT, EQUAL, MISMATCH, MISSING, compare_kept, document, effect_of, main_of
from opguard_core.fingerprint.cpu import digests_of_bytes
from opguard_core.trace.kept import Block
from tests.support.blocks import block, flipped, normal
from tests.support.kept import digests, kept

X = normal(4, 6)


def compared(reference, suspect, recorded=None):
    return compare_kept((reference, suspect), recorded or (digests(reference), digests(suspect)))


def test_results_come_before_inputs_and_each_side_is_fingerprinted_again():
    reference, suspect = kept(in_0=X, out_0=X * 2), kept(in_0=X, out_0=flipped(X * 2, (1, 2), 20))
    found = compared(reference, suspect)
    assert [(one.slot, one.state) for one in found] == [("out.0", DIFFERENT), ("in.0", EQUAL)]
    assert found[0].damage.likely == "single bit"
    assert all(check.equal for one in found for check in one.again.values())
    assert main_of(found, "in.0").slot == "out.0"
    told = document((reference, suspect), found, "out.0", alone=False)
    assert (told["main"], told["same_call"], told["counts"]) == ("out.0", True, {EQUAL: 1, DIFFERENT: 1})
    json.dumps(told)


def test_bytes_that_are_not_what_the_trace_fingerprinted_are_not_compared():
    reference, suspect = kept(out_0=X), kept(out_0=X * 2)
    found = compared(reference, suspect, (digests(reference), {"out.0": 1}))
    assert (found[0].state, found[0].damage) == (MISMATCH, None)
    assert "the bytes kept of the suspect are not the ones" in found[0].why
    assert not found[0].again["suspect"].equal
    assert main_of(found, "out.0") is found[0]


def test_a_slot_that_the_trace_has_no_digest_of_says_so():
    found = compared(kept(out_0=X), kept(out_0=X * 2), ({}, {}))
    assert (found[0].state, found[0].why) == (DIFFERENT, "the trace has no digest of the reference and of the suspect")


def test_a_slot_without_bytes_names_the_side_and_the_reason():
    reference, suspect = kept(out_0=X, left_out=("out.0",)), kept(in_0=X)
    states = {one.slot: (one.state, one.why) for one in compared(reference, suspect)}
    assert states["out.0"] == (MISSING, "bytes of the reference were not kept: no room; the suspect has no such slot")
    assert states["in.0"] == (MISSING, "the reference has no such slot")


def test_an_operator_of_one_side_is_told_by_its_effect():
    suspect = kept("aten.neg.default", in_0=X, out_0=-X)
    found = compare_kept((None, suspect), ({}, digests(suspect)))
    assert {one.state for one in found} == {MISSING}
    side, damage = effect_of((None, suspect))
    assert (side, damage.likely) == ("suspect", "sign")
    assert effect_of((suspect, suspect)) is None
    assert effect_of((None, kept(out_0=X))) is None
    assert "effect" not in document((None, suspect), found, "", alone=False)
    assert document((None, suspect), found, "", alone=True)["effect"]["damage"]["likely"] == "sign"


def test_a_stale_result_is_told_by_the_input_it_holds():
    before = normal(4, 6, seed=3)
    found = compared(kept(in_0=before, out_0=X), kept(in_0=before, out_0=before))
    assert (found[0].damage.likely, "in.0" in found[0].damage.rule) == ("stale", True)


def test_an_update_of_many_tensors_stays_short():
    reference = kept(**{f"out_0_{index}": X + index for index in range(700)})
    suspect = kept(**{f"out_0_{index}": X - index for index in range(700)})
    found = compared(reference, suspect)
    assert len(found) == 512
    assert sum(one.damage is not None for one in found) == 16
    assert len(json.dumps(document((reference, suspect), found, "", alone=False))) < 400_000


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn", "int64", "bool", "complex64", "bits8"])
@pytest.mark.parametrize("limit", [1 << 13, 0])
def test_the_second_fingerprint_is_another_implementation_and_sees_a_flipped_bit(dtype, limit, monkeypatch):
    monkeypatch.setattr(fingerprint_again, "ORACLE_ELEMENTS", limit)
    raw = np.arange(64, dtype=np.uint8) % 2 if dtype == "bool" else np.arange(64, dtype=np.uint8)
    size = {"float32": 4, "bfloat16": 2, "int64": 8, "complex64": 8}.get(dtype, 1)
    one = Block(dtype, (64 // size,), raw.tobytes())
    word = digests_of_bytes(one.data).mix64
    found = again(one, word)
    assert found.equal
    assert set(found.mix64) == {"oracle"} if limit and dtype != "bits8" else {"numpy"} <= set(found.mix64) <= {"numpy", "native"}
    assert not again(replace(one, data=flipped(raw, (9,), 0).tobytes()), word).equal


def test_a_scalar_and_an_empty_tensor_are_fingerprinted_too():
    for values in (np.float32(3), np.zeros((0, 3), np.float32)):
        one = block(values)
        assert again(one, digests_of_bytes(one.data).mix64).equal
