"""Claims: whatever is wrong with a trace ends in one TraceFormatError that names the place, and nothing outside the trace is
ever read because of what stands in it."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys

import pytest

from opguard_core.errors import CorruptSegment, NotATrace, TraceFormatError, UnsupportedVersion
from opguard_core.trace import files
from opguard_core.trace.index import Group, IndexWriter, SegmentEntry, read_index
from opguard_core.trace.manifest import RankManifest, RunManifest, read_rank_manifest, read_run_manifest, write_manifest
from opguard_core.trace.reader import Run
from opguard_core.trace.version import FORMAT_VERSION
from tests.support.traces import read_rank, reseal


@pytest.mark.parametrize("where", ["manifest.json", "rank-00000/manifest.json"])
def test_a_newer_format_is_refused(run, where):
    reseal(run / where, lambda record: record.update(format=FORMAT_VERSION + 1))
    with pytest.raises(UnsupportedVersion, match=f"expected at most {FORMAT_VERSION}, found {FORMAT_VERSION + 1}") as caught:
        Run.open(run)
    assert caught.value.as_dict()["slug"] == "unsupported-trace-version"


def test_a_newer_index_is_refused(tmp_path):
    IndexWriter(tmp_path, {"format": FORMAT_VERSION + 1}).close()
    with pytest.raises(UnsupportedVersion):
        read_index(tmp_path / "index.log")


def test_a_folder_without_ranks(tmp_path):
    with pytest.raises(NotATrace, match=r"No ranks in this folder.*`--out`"):
        Run.open(tmp_path)
    with pytest.raises(NotATrace, match="Cannot open"):
        Run.open(tmp_path / "absent")
    with pytest.raises(NotATrace, match="Cannot open"):
        Run.open("null\0byte")


def test_the_folder_of_one_rank(run):
    with pytest.raises(NotATrace, match="name the folder around it"):
        Run.open(run / "rank-00000")


def test_ranks_that_left_nothing_are_named(run):
    assert Run.open(run).missing_ranks == [1]
    assert Run.open(run).torn is None


def test_a_run_without_a_finished_manifest_is_torn(run):
    write_manifest(run, RunManifest())
    assert Run.open(run).torn.slug == "not-finished"
    (run / "manifest.json").write_text("{")
    assert Run.open(run).torn.slug == "manifest-damaged"
    (run / "manifest.json").unlink()
    assert Run.open(run).torn.slug == "no-manifest"
    assert len(read_rank(run).events) == 3


def test_links_are_refused(run, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    segment = run / "rank-00000" / "slots-000000.arrow"
    segment.rename(outside / "slots")
    segment.symlink_to(outside / "slots")
    with pytest.raises(CorruptSegment, match="no plain file"):
        Run.open(run)
    segment.unlink()
    (outside / "slots").rename(segment)
    (run / "rank-00001").symlink_to(run / "rank-00000")
    with pytest.raises(TraceFormatError, match="Rank folder is a link"):
        Run.open(run)


def test_a_link_put_in_place_after_opening_is_refused(run, tmp_path_factory):
    trace = Run.open(run).ranks[0]
    segment = run / "rank-00000" / "slots-000000.arrow"
    outside = tmp_path_factory.mktemp("outside") / "slots"
    segment.rename(outside)
    segment.symlink_to(outside)
    with pytest.raises(CorruptSegment, match="Cannot open"):
        list(trace.iter_windows())


def test_a_linked_manifest_or_index_is_not_followed(run, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    for name in ("manifest.json", "index.log"):
        path = run / "rank-00000" / name
        path.rename(outside / name)
        path.symlink_to(outside / name)
    with pytest.raises(TraceFormatError, match="Cannot open"):
        Run.open(run)


@pytest.mark.parametrize(
    "change",
    [
        {"file": "../rank-00000/slots-000000.arrow"},
        {"file": "/etc/passwd"},
        {"file": "events-000000.arrow"},
        {"file": "slots-000000.arrow\n"},
        {"file": 3},
        {"table": "other"},
        {"rows": 0},
        {"rows": -1},
        {"rows": True},
        {"bytes": 2**63},
        {"bytes": "many"},
        {"sha256": "0" * 63},
        {"sha256": None},
        {"first_seq": 5},
    ],
)
def test_segment_entries_are_not_believed(run, change):
    reseal(run / "rank-00000" / "manifest.json", lambda record: record["segments"][-2].update(change))
    with pytest.raises(TraceFormatError, match="Bad segment"):
        # Damaged by content, not by accident: the seal holds.
        read_rank_manifest(run / "rank-00000")
    assert Run.open(run).ranks[0].torn.slug == "manifest-damaged"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rank", "0"),
        ("complete", 1),
        ("segments", {}),
        ("segments", [3]),
        ("drops", []),
        ("drops", {"events": 1, "ranges": []}),
        ("drops", {"events": 0, "ranges": {}}),
        ("drops", {"events": 2, "ranges": [[1, 0]]}),
        ("drops", {"events": 0, "ranges": [], "reasons": 3}),
        ("engines", None),
        ("format", None),
        ("format", 0),
    ],
)
def test_manifest_values_are_checked(run, key, value):
    reseal(run / "rank-00000" / "manifest.json", lambda record: record.update({key: value}))
    with pytest.raises(TraceFormatError):
        read_rank_manifest(run / "rank-00000")


@pytest.mark.parametrize(("key", "value"), [("steps", [1]), ("steps", "1:2"), ("exit", 3), ("argv", "python"), ("complete", None)])
def test_run_manifest_values_are_checked(run, key, value):
    reseal(run / "manifest.json", lambda record: record.update({key: value}))
    with pytest.raises(TraceFormatError):
        read_run_manifest(run)


def test_run_manifest_round_trip(tmp_path):
    manifest = RunManifest(argv=["python", "train.py"], steps=(3, 5), exit={"code": None, "signal": 9}, ranks=[0], extra={"plan_hash": "x"})
    write_manifest(tmp_path, manifest)
    assert read_run_manifest(tmp_path) == manifest


def test_a_manifest_in_the_folder_of_another_rank(run):
    (run / "rank-00000").rename(run / "rank-00001")
    with pytest.raises(TraceFormatError, match="Manifest of another rank"):
        Run.open(run)


def test_files_of_the_wrong_kind_or_size(tmp_path, monkeypatch):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "file").write_bytes(b"12345")
    for name, match in (("folder", "Not a file"), ("fifo", "Not a file"), ("absent", "Cannot open")):
        with pytest.raises(TraceFormatError, match=match):
            files.read_checked(tmp_path / name, limit=10)
    with pytest.raises(TraceFormatError, match="too large"):
        files.read_checked(tmp_path / "file", limit=4)
    with pytest.raises(TraceFormatError, match="at byte 3: expected 3 bytes, found 5"):
        files.read_checked(tmp_path / "file", limit=10, expected_bytes=3)
    with monkeypatch.context() as patched:
        patched.setattr(files, "_read_exactly", lambda descriptor, size: b"12")
        with pytest.raises(TraceFormatError, match="shrank"):
            files.read_checked(tmp_path / "file", limit=10)

    def fails(descriptor, size):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(files, "_read_exactly", fails)
    with pytest.raises(TraceFormatError, match="Input/output error"):
        files.read_checked(tmp_path / "file", limit=10)


def test_index_records_are_not_believed(tmp_path):
    def index(name, *records):
        folder = tmp_path / name
        folder.mkdir()
        writer = IndexWriter(folder, {"format": 1})
        for record in records:
            writer._append(record)
        writer.close()
        return folder / "index.log"

    for name, record in (
        ("a", []),
        ("b", {"segments": 3}),
        ("c", {"segments": [3]}),
        ("d", {"segments": [], "dropped": 3}),
        ("e", {"segments": [], "dropped": [[3]]}),
    ):
        with pytest.raises(TraceFormatError, match="Bad"):
            read_index(index(name, record))
    entry = SegmentEntry("events-000007.arrow", "events", 1, 2, "0" * 64, 3, 3)
    folder = tmp_path / "f"
    folder.mkdir()
    writer = IndexWriter(folder, {"format": 1})
    writer.append(Group((entry,), ((0, 2),)))
    writer.close()
    assert read_index(folder / "index.log").groups == (Group((entry,), ((0, 2),)),)
    assert entry.group == 7


def test_an_index_line_with_a_good_check_but_no_json(tmp_path):
    check = hashlib.sha256(b"nonsense").hexdigest()[:32]
    (tmp_path / "index.log").write_bytes(check.encode() + b" nonsense\n")
    with pytest.raises(TraceFormatError, match=r"Bad index line.*at byte 0"):
        read_index(tmp_path / "index.log")


def test_errors_carry_their_facts(run):
    (run / "rank-00000" / "events-000000.arrow").write_bytes(b"x" * 100_000)
    with pytest.raises(CorruptSegment) as caught:
        Run.open(run)
    assert caught.value.facts["path"].endswith("events-000000.arrow")
    assert caught.value.facts["found"] == 100_000
    json.dumps(caught.value.facts)


def test_listing_runs_does_not_load_pyarrow():
    program = "import sys\nimport opguard_core.trace.manifest\nprint(sorted({'pyarrow', 'numpy', 'torch'} & set(sys.modules)))"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert loaded == "[]\n"
    # The check can fail: the reader does load it.
    loaded = subprocess.run(
        [sys.executable, "-c", program.replace("manifest", "reader")], capture_output=True, text=True, check=True
    ).stdout
    assert "pyarrow" in loaded
    assert "torch" not in loaded


def test_default_manifests_are_writable(tmp_path):
    write_manifest(tmp_path, RankManifest())
    assert read_rank_manifest(tmp_path) == RankManifest()
