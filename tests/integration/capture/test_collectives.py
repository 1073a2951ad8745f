# ruff: noqa: E402  (torch may be missing)
"""Collectives on two gloo ranks: inputs before, results at their first consumer, never by blocking."""

import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from tests.integration.capture.test_harmless import ENV
from tests.support.capturing import ROOT


def test_two_ranks_see_what_they_exchanged(tmp_path):
    command = [sys.executable, "-W", "ignore", "-m", "tests.integration.capture.two_ranks"]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path / "store")], cwd=ROOT, env=ENV, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for rank in range(2)
    ]
    try:
        outputs = [rank.communicate(timeout=100)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(outputs)
    assert outputs[0].count("ok ") == outputs[1].count("ok ") == 9
