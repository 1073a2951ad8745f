"""A state folder, and jobs that it is said to hold."""

import pytest

from opguard_harness.tools import listing
from opguard_harness.workspace.listing import JobFacts
from tests.support.old_results import ordered


@pytest.fixture
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(listing, "known_jobs", list)
    folder = tmp_path / "state" / "opguard"
    (folder / "runs").mkdir(parents=True, mode=0o700)
    return folder


@pytest.fixture
def jobs(state, monkeypatch):
    """Makes jobs of old, each with a folder."""

    def make(*named, tool="compare", status="succeeded", **asked):
        known = list(listing.known_jobs())
        for name in named:
            ordered(state, name, tool=tool, **asked)
            known.append(JobFacts(name, tool, status, 1.0, asked.get("case", "")))
        monkeypatch.setattr(listing, "known_jobs", lambda: known)

    return make
