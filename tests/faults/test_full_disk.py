"""Claim: a disk that is full while a training runs costs records, which are counted, and never the training; a comparison
with what is left is never `identical`."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager

import pytest

from opguard_core.certify.compare import compare
from opguard_core.trace.reader import Run

pytestmark = [pytest.mark.torch, pytest.mark.full]

PROGRAM = """
import os, sys
import torch

torch.manual_seed(0)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
filler = os.environ.get("FILL")
for step in range(6):
    if step == 3 and filler:
        with open(filler, "wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(1 << 16))
            except OSError:
                pass
    loss = model(torch.randn(4, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item().hex())
"""


@contextmanager
def small_disk(path, size):
    """A file system of its own of that size."""
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size},mode=0700", "none", path], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", path], check=True)


def observed(folder, program, **env):
    command = [sys.executable, "-m", "opguard_core", "run", "--out", str(folder), "--", sys.executable, str(program)]
    return subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, check=False)


@pytest.mark.skipif(sys.platform != "linux", reason="needs a file system of its own")
def test_the_disk_is_full_from_the_third_step_on(tmp_path):
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    whole = observed(tmp_path / "whole", program)
    assert whole.returncode == 0, whole.stderr
    with small_disk(tmp_path / "disk", "160m") as disk:
        done = observed(disk / "run", program, FILL=str(disk / "filler"))
        assert (done.returncode, done.stdout) == (0, whole.stdout), done.stderr
        (disk / "filler").unlink()
        run = Run.open(disk / "run")
        trace = run.ranks[0]
        assert trace.torn is not None or trace.manifest.drops.events > 0
        assert 0 < sum(len(window) for window in trace.iter_windows()) < Run.open(tmp_path / "whole").ranks[0].num_events
        verdict = compare(Run.open(tmp_path / "whole"), run)
        assert verdict.verdict == "inconclusive", verdict
        assert {"torn-trace", "dropped-records"} & {reason.slug for reason in verdict.reasons}
