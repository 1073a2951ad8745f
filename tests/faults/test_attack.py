"""Claim: whatever lies in a trace folder, reading and judging it ends in right rows, one clear error, or an allowed verdict."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from opguard_core.ids import VERDICTS
from tests.faults.attack.__main__ import attack_all, table
from tests.faults.attack.targets import TARGETS
from tests.support.campaign import CAMPAIGN

INPUTS = 1_000_000 if CAMPAIGN else 60_000
FEW = {"index": 2000, "manifest": 2000, "segment": 1000, "files": 150, "rows": 80}
REACHED = {"index": {"read", "torn", "refused"}, "files": {"read", "torn", "refused"}, "rows": {*VERDICTS, "refused"}}


def changed(data: bytes, rng: random.Random) -> bytes:
    """An input with a few bytes changed."""
    result = bytearray(data)
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(len(result) + 1)
        result[at : at + rng.randint(0, 2)] = rng.randbytes(rng.randint(0, 2))
    return bytes(result)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_a_few_thousand_inputs(target):
    rng = random.Random(target.name)
    seeds = list(target.seeds())
    outcomes = Counter(target.attack(changed(rng.choice(seeds), rng)) for _ in range(FEW[target.name]))
    assert set(outcomes) == REACHED.get(target.name, {"read", "refused"})  # else nothing behind some check was reached


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_many_inputs(tmp_path, capsys):
    found = attack_all(INPUTS, seed=1, artefacts=tmp_path, jobs=2)
    with capsys.disabled():
        print(f"\n{table(found)}")
    assert not [item.failure for item in found if item.failure]
    assert sum(item.inputs for item in found) == INPUTS
