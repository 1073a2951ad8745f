"""Claims: one flipped bit anywhere in a trace never changes a row that is read. It is refused, or ends the prefix.

The fast tier flips a bit in some of the bytes, the full tier in many, a campaign one in each.
"""

from __future__ import annotations

import shutil

import pytest

from opguard_core.errors import CorruptSegment, TraceFormatError
from opguard_core.trace.reader import Run
from opguard_core.trace.writer import TraceWriter
from tests.support.campaign import CAMPAIGN
from tests.support.synthetic import GptShape, emit_side, gpt
from tests.support.traces import Content

KINDS = ("finished", "killed")
STRIDE = 1 if CAMPAIGN else 5


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    root = tmp_path_factory.mktemp("traces")
    writer = TraceWriter(root / "live" / "rank-00000", contract={"torch": "2.13"})
    emit_side(gpt(GptShape(layers=1, width=8, tokens=4, vocabulary=16, steps=1)), writer, stop=20)
    writer.flush()
    shutil.copytree(root / "live", root / "killed")
    writer.close(ended="exit", coverage={"sparse": 1})
    (root / "live").rename(root / "finished")
    return {kind: (root / kind, Content(Run.open(root / kind).ranks[0])) for kind in KINDS}


def flip_everywhere(folder, whole, path, stride):
    original = path.read_bytes()
    manifest = Run.open(folder).ranks[0].manifest
    outcomes = set()
    try:
        for offset in range(0, len(original), stride):
            damaged = bytearray(original)
            damaged[offset] ^= 1 << (offset * 5 // stride) % 8
            path.write_bytes(damaged)
            try:
                trace = Run.open(folder).ranks[0]
                found = Content(trace)
            except TraceFormatError as error:
                assert str(folder) in str(error)
                outcomes.add(type(error).__name__)
                continue
            assert found.is_prefix_of(whole), (path, offset)
            if trace.torn is None:
                assert found == whole
                assert trace.manifest == manifest
            outcomes.add(trace.torn.slug if trace.torn else "whole")
    finally:
        path.write_bytes(original)
    return outcomes


@pytest.mark.full
@pytest.mark.usefixtures("remembered")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", KINDS)
def test_many_bytes_of_every_file(traces, kind):
    folder, whole = traces[kind]
    for path in sorted((folder / "rank-00000").iterdir()):
        assert flip_everywhere(folder, whole, path, STRIDE)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("table", ["events", "slots", "frames", "stacks", "lifetimes"])
def test_segments(traces, kind, table):
    folder, whole = traces[kind]
    path = folder / "rank-00000" / f"{table}-000000.arrow"
    if path.exists():
        assert flip_everywhere(folder, whole, path, 499) == {"CorruptSegment"}
    else:
        assert table == "lifetimes"
        assert not whole.lifetimes


def test_index_of_a_killed_run(traces):
    folder, whole = traces["killed"]
    assert flip_everywhere(folder, whole, folder / "rank-00000" / "index.log", 11) == {"index-damaged"}


def test_index_of_a_finished_run_is_not_needed(traces):
    folder, whole = traces["finished"]
    assert flip_everywhere(folder, whole, folder / "rank-00000" / "index.log", 200) == {"whole"}


@pytest.mark.usefixtures("remembered")
@pytest.mark.parametrize("kind", KINDS)
def test_manifest(traces, kind):
    folder, whole = traces[kind]
    outcomes = flip_everywhere(folder, whole, folder / "rank-00000" / "manifest.json", 13)
    # White space may change without harm; a version digit may become a newer one.
    assert outcomes <= {"manifest-damaged", "UnsupportedVersion", "TraceFormatError", "whole" if kind == "finished" else "not-finished"}
    assert "manifest-damaged" in outcomes


def test_the_error_names_the_file_and_both_digests(traces):
    folder, _ = traces["finished"]
    path = folder / "rank-00000" / "slots-000000.arrow"
    original = path.read_bytes()
    path.write_bytes(original[:-1] + bytes([original[-1] ^ 1]))
    with pytest.raises(CorruptSegment) as caught:
        list(Run.open(folder).ranks[0].iter_windows())
    path.write_bytes(original)
    assert caught.value.facts["path"] == str(path)
    assert caught.value.facts["expected"] != caught.value.facts["found"]
    assert str(caught.value).endswith("[corrupt-segment]")


def test_a_byte_too_many_is_refused(traces):
    folder, _ = traces["finished"]
    path = folder / "rank-00000" / "events-000000.arrow"
    original = path.read_bytes()
    path.write_bytes(original + b"\0")
    with pytest.raises(CorruptSegment, match=f"at byte {len(original)}"):
        Run.open(folder)
    path.write_bytes(original)
