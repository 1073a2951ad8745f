"""Claims: a trace cut at any byte of any file reads as a valid prefix with a torn flag, or ends in one TraceFormatError.

The fast tier cuts at some of the bytes, the full tier at many, a campaign at each.
"""

from __future__ import annotations

import os
import shutil

import pytest

from opguard_core.errors import TraceFormatError
from opguard_core.trace.reader import Run
from opguard_core.trace.writer import TraceWriter
from tests.support.campaign import CAMPAIGN
from tests.support.synthetic import GptShape, emit_side, gpt
from tests.support.traces import Content, event, slot

KINDS = ("finished", "killed")
STRIDE = 1 if CAMPAIGN else 7


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    """One small trace as its writer left it, and one as a kill would have left it, each with the rows it holds."""
    root = tmp_path_factory.mktemp("traces")
    writer = TraceWriter(root / "live" / "rank-00000")
    emit_side(gpt(GptShape(layers=1, width=8, tokens=4, vocabulary=16, steps=1)), writer, stop=20)
    writer.flush()
    writer.emit(event(20, window=1), [slot(20)])
    writer.emit(event(21, window=2), [])
    writer.flush()
    shutil.copytree(root / "live", root / "killed")
    writer.close(ended="exit")
    (root / "live").rename(root / "finished")
    result = {}
    for kind in KINDS:
        result[kind] = root / kind, Content(Run.open(root / kind).ranks[0])
        assert result[kind][1].num_events == 22
    return result


def files_of(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


def check(folder, whole, path, size):
    """The property of this module, for one damaged state of the folder."""
    try:
        run = Run.open(folder)
        trace = run.ranks[0]
        found = Content(trace)
    except TraceFormatError as error:
        assert {"path", "offset", "expected", "found"} <= error.facts.keys(), (path, size)
        return "refused"
    assert found.is_prefix_of(whole), (path, size)
    assert found.num_events == trace.num_events
    if trace.torn is None:
        assert found == whole, (path, size)
        return "whole"
    assert trace.torn.next_seq == trace.num_events
    return trace.torn.slug


def cut_everywhere(folder, whole, path, stride):
    original = path.read_bytes()
    outcomes = set()
    try:
        for size in sorted({*range(0, len(original), stride), len(original) - 1}, reverse=True):
            os.truncate(path, size)
            outcomes.add(check(folder, whole, path, size))
    finally:
        path.write_bytes(original)
    return outcomes


@pytest.mark.usefixtures("remembered")
@pytest.mark.parametrize("kind", KINDS)
def test_cut_at_sampled_bytes(traces, kind):
    folder, whole = traces[kind]
    outcomes = {}
    for path in files_of(folder):
        stride = {".arrow": 499, ".log": 5 if kind == "killed" else 200}.get(path.suffix, 41)
        outcomes[path.name if path.parent != folder / "sources" else "source"] = cut_everywhere(folder, whole, path, stride)
    assert outcomes["events-000000.arrow"] == {"segment-short"}
    assert outcomes["slots-000001.arrow"] == {"segment-short"}
    assert outcomes["frames-000000.arrow"] == {"segment-short"}
    assert outcomes["source"] <= {"whole", "not-finished"}  # noticed when the text is asked for
    if kind == "finished":
        assert outcomes["index.log"] == {"whole"}
        assert outcomes["manifest.json"] == {"manifest-damaged", "whole"}  # its last byte is a newline
    else:
        assert outcomes["index.log"] <= {"index-damaged", "not-finished"}  # the latter at the end of a line


@pytest.mark.full
@pytest.mark.usefixtures("remembered")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", KINDS)
def test_cut_at_many_bytes(traces, kind):
    folder, whole = traces[kind]
    for path in files_of(folder):
        assert cut_everywhere(folder, whole, path, STRIDE)


@pytest.mark.parametrize("kind", KINDS)
def test_any_file_may_be_missing(traces, kind):
    folder, whole = traces[kind]
    outcomes = {}
    for path in files_of(folder):
        original = path.read_bytes()
        path.unlink()
        outcomes[path.name] = check(folder, whole, path, None)
        path.write_bytes(original)
    assert outcomes["slots-000000.arrow"] == "segment-missing"
    assert outcomes["manifest.json"] == "no-manifest"
    assert outcomes["index.log"] == ("whole" if kind == "finished" else "index-missing")


def test_a_short_group_takes_later_groups_with_it(traces):
    folder, whole = traces["finished"]
    path = folder / "rank-00000" / "slots-000001.arrow"
    original = path.read_bytes()
    path.write_bytes(original[:-1])
    trace = Run.open(folder).ranks[0]
    windows = list(trace.iter_windows())
    path.write_bytes(original)
    assert trace.torn is not None
    assert (trace.num_events, trace.torn.slug, trace.torn.next_seq) == (20, "segment-short", 20)
    assert str(path) in trace.torn.text
    assert not windows[-1].whole
    assert Content(trace).is_prefix_of(whole)
    assert sum(map(len, windows)) == 20


def test_files_left_by_a_kill_are_ignored(traces):
    folder, whole = traces["killed"]
    extra = [folder / "rank-00000" / name for name in (".events-000002.arrow.77.tmp", "events-000002.arrow", "slots-000002.arrow")]
    for path in extra:
        path.write_bytes(b"half")
    assert check(folder, whole, None, None) == "not-finished"
    for path in extra:
        path.unlink()
