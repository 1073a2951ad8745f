"""Claim: a training killed with -9 at any moment leaves a trace that reads as a prefix of what happened, and that no
comparison calls equal to the whole."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

from tests.support.campaign import CAMPAIGN

pytestmark = [pytest.mark.torch, pytest.mark.full]


KILLS = 50 if CAMPAIGN else 16


@pytest.mark.timeout(900)
def test_killed_at_random_moments(tmp_path):
    command = [sys.executable, "-m", "tests.faults.killed_training", str(tmp_path), str(KILLS), "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == KILLS
    for left in found:
        assert left["signal"] == signal.SIGKILL, left
        assert left["torn"] == "not-finished", left
        assert left["verdict"] == "inconclusive" and "torn-trace" in left["reasons"], left
        assert left["events"] <= left["total"], left
        assert (left["events"] > 0) == (left["interned"][0] > 0), left  # frames of what is there are there as well
    lengths = {left["events"] for left in found}
    assert len(lengths) > KILLS // 5, f"kills that leave something else each time: {sorted(lengths)}"
