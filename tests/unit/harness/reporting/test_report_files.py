"""A report is three files of one object; a report with one altered digit, or whose records have gone, is refused by name."""

import copy
import json
import shutil
from pathlib import Path

import pytest

from opguard_core.errors import OpGuardError
from opguard_harness.answer.schema import report_schema
from opguard_harness.answer.validate import faults
from opguard_harness.config import runs_dir
from opguard_harness.errors import ReportRefused
from opguard_harness.tools.cases import RecordFindingArguments, record_finding
from opguard_harness.workspace.reporting import files
from opguard_harness.workspace.reporting.files import NAMES, TIMELINE, Gathered, check_written, gather, laid_out, write
from opguard_harness.workspace.reporting.recheck import unchecked
from tests.support.stored_case import stored_case


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """One case, its finding and its written report; tests that change something put it back."""
    base = tmp_path_factory.mktemp("reports")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(base / "state"))
        (base / "root").mkdir()
        made = stored_case(base / "root")
        record_finding(RecordFindingArguments(made.case.id, "It is `aten.gelu.default`.", evidence=[made.cited("suspect")]))
        made.gathered = gather(made.case, made.comparison)
        made.written = write(made.case, made.gathered)
        yield made


@pytest.fixture
def restored(found):
    """The files as they were written, after a test that alters them."""
    paths = [*found.written.paths.values(), runs_dir() / found.comparison / "answer.json", found.case.folder / "findings.json"]
    before = {path: path.read_bytes() for path in paths}
    yield found
    for path, data in before.items():
        path.write_bytes(data)


def test_the_three_files_are_one_object(found):
    assert set(found.written.paths) >= set(NAMES)
    model = json.loads(found.written.paths["report.json"].read_text())
    assert model == found.gathered.model
    assert faults(model, report_schema()) == []
    assert laid_out(model) == {name: found.written.paths[name].read_bytes() for name in NAMES}
    assert check_written(found.case) == model


def test_the_object_says_what_the_traces_hold(found):
    model, pivot = found.gathered.model, found.answer["pivot"]
    boundary = model["pivot"]["boundary"]
    assert (model["verdict"], model["pivot"]["operator"], model["pivot"]["step"]) == ("diverged", "aten.gelu.default", pivot["step"])
    assert [boundary[side]["id"] for side in ("reference", "suspect")] == [found.cited("reference"), found.cited("suspect")]
    out = next(slot for slot in boundary["slots"] if slot["direction"] == "out")
    assert out["how"] == "different"
    assert out["reference"]["digest"] != out["suspect"]["digest"]
    assert all(slot["how"] == "equal" for slot in boundary["slots"] if slot["direction"] == "in")
    rows = model["trace"]["rows"]
    at = next(number for number, row in enumerate(rows) if row["what"] == ["pivot"])
    assert {row["results"] for row in rows[:at]} == {"same"}
    assert rows[at]["results"] == "differ"
    assert model["confidence"][0]["level"] == "good"
    assert [item["claim"] for item in model["findings"]] == ["It is `aten.gelu.default`."]


def test_a_schema_that_lacks_what_is_written_would_be_noticed(found):
    more = {**found.gathered.model, "more": 1}
    assert faults(more, report_schema())
    less = {key: value for key, value in found.gathered.model.items() if key != "pivot"}
    assert faults(less, report_schema())


def _other(digit: str) -> str:
    return "7" if digit != "7" else "8"


def _altered(text: str) -> str:
    at = max(index for index, char in enumerate(text) if char.isdigit())
    return text[:at] + _other(text[at]) + text[at + 1 :]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda m: m["pivot"]["boundary"]["suspect"].update(seq=m["pivot"]["boundary"]["suspect"]["seq"] + 1), "pivot.boundary.suspect"),
        (lambda m: _slot(m).update(digest=_altered(_slot(m)["digest"])), "digest"),
        (lambda m: _slot(m).update(shape=_altered(_slot(m)["shape"])), "shape"),
        (lambda m: _slot(m).update(bytes=_slot(m)["bytes"] + 1), "bytes"),
        (lambda m: m["trace"]["rows"][0]["slots"][0].update(how="different"), "how"),
        (lambda m: m["trace"]["rows"][3]["suspect"].update(operator="aten.mm.default"), r"trace.rows\[3\].suspect.operator"),
        (lambda m: m["trace"]["rows"][3]["reference"].update(id=_altered(m["trace"]["rows"][3]["reference"]["id"])), "reference.id"),
        (lambda m: m["frames"][m["pivot"]["boundary"]["suspect"]["frame"]].update(line=99_999), "frame.line"),
        (lambda m: m["pivot"]["boundary"]["suspect"].update(frame=len(m["frames"])), "there is no frame"),
        (lambda m: m["pivot"]["boundary"]["suspect"].update(stack=-1), "there is no stack -1"),
        (lambda m: m["stacks"][m["pivot"]["boundary"]["suspect"]["stack"]].append(len(m["frames"])), "stack: the trace has"),
        (lambda m: m["frames"][m["pivot"]["boundary"]["suspect"]["frame"]].update(source=len(m["sources"])), "source: the stored text"),
        (lambda m: m["comparison"]["suspect"].update(digest="0" * 64), "comparison.suspect.digest"),
        (lambda m: m["findings"][0]["evidence"][0].update(id=_altered(m["findings"][0]["evidence"][0]["id"])), r"findings\[0\]"),
        (lambda m: m["findings"][0]["evidence"][0].update(quote="another"), "quote"),
    ],
)
def test_the_writer_refuses_an_object_with_one_altered_value(found, tmp_path, change, named):
    model = copy.deepcopy(found.gathered.model)
    change(model)
    assert model != found.gathered.model
    with pytest.raises(ReportRefused, match=named):
        write(found.case, Gathered(model, found.gathered.checked, found.gathered.findings), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def _slot(model):
    return next(slot for slot in model["pivot"]["boundary"]["slots"] if slot["direction"] == "out")["suspect"]


def test_an_object_that_holds_has_nothing_unchecked(found):
    assert list(unchecked(found.gathered.model)) == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("prefix", "pairs"), 1),
        (("pivot", "step"), 1),
        (("pivot", "origin"), "argument"),
        (("compared", "comparisons"), 1),
        (("spread", "total"), 1),
        (("pivot", "suspect", "line"), 1),
        (("verdict",), "identical"),
    ],
)
def test_an_answer_with_one_altered_value_is_refused_by_its_name(restored, path, value):
    file = runs_dir() / restored.comparison / "answer.json"
    told = json.loads(file.read_text())
    *inner, last = path
    holder = told
    for key in inner:
        holder = holder[key]
    before = holder[last]
    holder[last] = before + value if isinstance(value, int) else value
    assert holder[last] != before
    file.write_text(json.dumps(told))
    with pytest.raises(OpGuardError) as refused:
        gather(restored.case, restored.comparison)
    assert last in refused.value.message or "answer" in refused.value.message


@pytest.mark.parametrize("name", NAMES)
def test_a_written_file_with_one_altered_digit_is_refused_by_its_name(restored, name):
    path = restored.written.paths[name]
    path.write_text(_altered(path.read_text()))
    with pytest.raises(ReportRefused, match=name.replace(".", r"\.")):
        check_written(restored.case)


@pytest.mark.parametrize("name", NAMES)
def test_a_file_that_has_gone_is_named(restored, name):
    restored.written.paths[name].unlink()
    with pytest.raises(ReportRefused, match=name.replace(".", r"\.")):
        check_written(restored.case)


def test_a_report_whose_trace_has_gone_no_longer_holds(found, tmp_path):
    trace = Path(found.answer["trace"]["suspect"])
    shutil.move(trace, tmp_path / "away")
    try:
        with pytest.raises(OpGuardError) as refused:
            check_written(found.case)
        assert refused.value.slug in ("report-refused", "evidence-not-found", "not-a-trace")
    finally:
        shutil.move(tmp_path / "away", trace)


def test_another_folder_gets_the_same_files(found, tmp_path):
    written = write(found.case, found.gathered, tmp_path / "for" / "review")
    assert {name: written.digests[name] for name in NAMES} == {name: found.written.digests[name] for name in NAMES}
    assert sorted(path.name for path in (tmp_path / "for" / "review").iterdir() if not path.name.startswith(".")) == sorted(written.paths)


def test_a_timeline_of_an_earlier_report_does_not_stay_beside_one_that_has_none(found, tmp_path, monkeypatch):
    (tmp_path / TIMELINE).write_bytes(b"of another report")
    monkeypatch.setattr(files, "_timeline", lambda answer: ({}, "No timeline: none can be drawn"))
    written = write(found.case, found.gathered, tmp_path)
    assert TIMELINE not in written.paths
    assert not (tmp_path / TIMELINE).exists()


def test_a_timeline_that_was_altered_is_refused_by_its_name(restored):
    pytest.importorskip("perfetto")
    path = restored.written.paths[TIMELINE]
    data = path.read_bytes()
    path.write_bytes(data.replace(b"aten.gelu.default", b"aten.relu.default", 1))
    assert path.read_bytes() != data
    with pytest.raises(ReportRefused, match=r"timeline\.pftrace is not what the traces give"):
        check_written(restored.case)
