# ruff: noqa: E402  (torch may be missing)
"""With capture on, a program prints the same bits, warnings and tracebacks as without."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from tests.support.capturing import ROOT

ENV = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "TQDM_DISABLE": "1"}


def _zoo(*arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "tests.integration.capture.zoo", *arguments]
    return subprocess.run(command, cwd=ROOT, env=ENV, capture_output=True, text=True, timeout=110)


@pytest.fixture(scope="module")
def bare() -> str:
    done = _zoo()
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("mode", ["verify", "full"])
def test_a_zoo_of_programs_cannot_tell_that_it_is_observed(bare, mode):
    done = _zoo("--capture", mode)
    assert done.returncode == 0, done.stderr
    parts = [dict(part.split("\n", 1) for part in text.split("== ")[1:]) for text in (bare, done.stdout)]
    assert parts[0].keys() == parts[1].keys()
    for name in parts[0]:
        assert parts[1][name] == parts[0][name], name
    assert "gaps {} True" in done.stderr
