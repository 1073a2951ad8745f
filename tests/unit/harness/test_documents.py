"""Documents of the state folder: nobody waits for ever for somebody who has stopped."""

import fcntl
import subprocess
import sys

import pytest

from opguard_harness.errors import SystemRefused
from opguard_harness.workspace import documents
from opguard_harness.workspace.documents import locked

HOLDER = """
import fcntl, sys
file = open(sys.argv[1], "w")
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


def test_a_lock_that_stays_held_is_an_error_that_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "LOCK_S", 0.0)
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / ".jobs.lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        holder.stdout.readline()
        with pytest.raises(SystemRefused, match="held the lock"), locked(tmp_path / "jobs"):
            pytest.fail("it is held")
        holder.communicate()
    with locked(tmp_path / "jobs"), (tmp_path / ".jobs.lock").open() as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
