"""Evidence is found by digest among all that is stored, and says so when it is gone, was changed, or is not one thing."""

from __future__ import annotations

import gzip
import shutil

import pytest

from opguard_core.errors import EvidenceNotFound, EvidenceStale
from opguard_core.evidence.refs import EventRef, SourceRef, parse
from opguard_core.trace.identity import trace_digest
from opguard_harness.config import runs_dir, state_dir
from opguard_harness.workspace import evidence
from opguard_harness.workspace.facts import resolve
from tests.support.driving.world import FAULT
from tests.support.synthetic import gpt, write_run
from tests.unit.evidence.conftest import FILE, TEXT


@pytest.fixture
def fault(stored):
    """The id of the planted boundary, suspect's side."""
    return str(EventRef(trace_digest(stored.suspect), 0, FAULT))


def test_a_boundary_is_found_wherever_its_trace_lies(stored, fault):
    fact = resolve(fault)
    assert (fact.kind, fact.data["operator"], fact.data["seq"]) == ("boundary", "aten.gelu.default", FAULT)
    stored.suspect.parent.rename(runs_dir() / "run-renamed")
    assert resolve(fault).digest == fact.digest


def test_the_same_boundary_of_both_sides_is_two_facts(stored, fault):
    other = str(EventRef(trace_digest(stored.reference), 0, FAULT))
    assert resolve(other).digest != resolve(fault).digest
    assert resolve(f"{other}/in.0").data["mix64"] == resolve(f"{fault}/in.0").data["mix64"]
    assert resolve(f"{other}/out.0").data["mix64"] != resolve(f"{fault}/out.0").data["mix64"]


@pytest.mark.parametrize("part", ["operator", "place", "phase", "step", "args", "random", "stack", "module"])
def test_each_field_of_a_boundary_can_be_cited(stored, fault, part):
    whole, field = resolve(fault), resolve(f"{fault}/{part}")
    assert field.kind == part
    if part in ("operator", "phase", "step", "place"):
        assert field.data[part] == whole.data[part]


def test_a_copy_of_a_trace_is_the_same_trace(stored, fault):
    shutil.copytree(stored.suspect.parent, runs_dir() / "run-copy")
    assert resolve(fault).data["seq"] == FAULT


def test_a_short_digest_that_two_traces_share_is_refused(stored, fault, monkeypatch):
    short = parse(fault).trace
    monkeypatch.setattr(evidence, "digest_of", lambda trace: short + ("0" if "000001" in str(trace) else "1") * 52)
    with pytest.raises(EvidenceNotFound, match="2 stored traces"):
        resolve(fault)


def test_a_trace_that_is_gone_is_not_found(stored, fault):
    shutil.rmtree(stored.suspect)
    with pytest.raises(EvidenceNotFound):
        resolve(fault)
    with pytest.raises(EvidenceNotFound, match=r"suspect's trace .* is gone"):
        resolve(fault, stored.comparison)


def test_a_trace_that_was_written_anew_is_stale_for_its_comparison(stored, fault):
    shutil.rmtree(stored.suspect)
    write_run(stored.suspect, gpt(), mode="verify")
    with pytest.raises(EvidenceStale, match="changed after the comparison"):
        resolve(fault, stored.comparison)
    with pytest.raises(EvidenceNotFound):
        resolve(fault)


def test_a_segment_that_was_changed_is_stale(stored, fault):
    segment = next(stored.suspect.glob("rank-00000/slots-*.arrow"))
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(data)
    with pytest.raises(EvidenceStale, match="not what was recorded"):
        resolve(fault)


def test_a_killed_run_has_a_digest_and_evidence(tmp_path):
    folder = write_run(runs_dir() / "run-torn" / "trace", gpt(), stop=200)
    (folder / "rank-00000" / "manifest.json").unlink()
    assert resolve(str(EventRef(trace_digest(folder), 0, 150))).data["seq"] == 150
    with pytest.raises(EvidenceNotFound, match="no event 5000"):
        resolve(str(EventRef(trace_digest(folder), 0, 5000)))


def test_what_a_boundary_does_not_have_is_not_found(stored, fault):
    with pytest.raises(EvidenceNotFound) as caught:
        resolve(f"{fault}/out.9")
    assert "out.0" in caught.value.as_dict()["fix"]
    with pytest.raises(EvidenceNotFound, match="no rank 7"):
        resolve(fault.replace("/0/", "/7/"))


def test_source_lines_are_those_that_were_executed(stored, fault):
    reference = parse(resolve(fault).data["source"])
    assert isinstance(reference, SourceRef)
    fact = resolve(str(reference))
    assert fact.data["lines"] == TEXT.splitlines()[reference.first - 1 : reference.last]
    assert fact.data["file"] == FILE


def test_source_under_another_name_or_beyond_its_end_is_not_found(stored, fault):
    reference = parse(resolve(fault).data["source"])
    with pytest.raises(EvidenceNotFound, match="another file name"):
        resolve(str(SourceRef(reference.digest, "other.py", 1, 1)))
    count = len(TEXT.splitlines())
    with pytest.raises(EvidenceNotFound, match=f"{count} lines"):
        resolve(str(SourceRef(reference.digest, FILE, 1, count + 1)))


def test_source_that_was_changed_is_stale(stored, fault):
    reference = resolve(fault).data["source"]
    for trace in (stored.reference, stored.suspect):
        for file in (trace / "sources").iterdir():
            file.write_bytes(gzip.compress(b"another text\n"))
    with pytest.raises(EvidenceStale):
        resolve(reference)


def test_what_a_comparison_or_job_left_is_cited_by_its_id(stored):
    fact = resolve(f"job:{stored.comparison}/answer")
    assert (fact.kind, fact.quote) == ("artefact", "diverged")
    folder = state_dir() / "jobs" / "compare-0123456789ab"
    folder.mkdir(parents=True)
    (folder / "log.txt").write_text("one\ntwo\n")
    assert resolve("job:compare-0123456789ab/log").quote == "2 lines"
    for missing in ("job:compare-0123456789ab/result", "job:compare-0123456789ab/nonsense", "job:nobody/answer"):
        with pytest.raises(EvidenceNotFound):
            resolve(missing)


def test_a_link_is_no_artefact(stored, tmp_path):
    folder = state_dir() / "jobs" / "compare-0123456789ab"
    folder.mkdir(parents=True)
    (tmp_path / "secret").write_text("key")
    (folder / "log.txt").symlink_to(tmp_path / "secret")
    with pytest.raises(EvidenceNotFound):
        resolve("job:compare-0123456789ab/log")
