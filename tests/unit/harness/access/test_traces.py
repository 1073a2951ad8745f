"""What is a trace is read and never run; what only looks like one is a program's folder."""

import pytest

from opguard_harness.access.traces import trace_folder
from opguard_harness.errors import SideNotFound
from opguard_harness.workspace.guarded import existing_folder


def test_a_folder_is_a_trace_by_what_a_rank_left_in_it(tmp_path):
    rank = tmp_path / "trace" / "rank-00000"
    rank.mkdir(parents=True)
    assert trace_folder(tmp_path) is None
    assert existing_folder(tmp_path) == tmp_path
    (rank / "manifest.json").write_text("{}")
    assert trace_folder(tmp_path) == tmp_path / "trace"


def test_no_program_runs_in_a_trace(tmp_path):
    rank = tmp_path / "rank-00000"
    rank.mkdir()
    (rank / "0.arrow").write_bytes(b"")
    with pytest.raises(SideNotFound, match="is a trace of an earlier run"):
        existing_folder(tmp_path)
