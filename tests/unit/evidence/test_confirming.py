"""A comparison is run again only as it was, and whatever comes of it is an answer; programs are stood in for by synthetic traces."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from opguard_core.errors import LaunchFailed
from opguard_core.ids import SIDES
from opguard_core.plan.config import rank_folder
from opguard_core.plan.keeping import kept_file
from opguard_core.trace.boundary import BoundaryKey, find_boundary
from opguard_core.trace.kept import Kept, write_kept
from opguard_core.trace.reader import Run
from opguard_harness.compare import confirm as confirming
from opguard_harness.compare.launching import SideRun
from opguard_harness.compare.programs import Program, changed_files, is_replayable, read_programs, write_programs
from opguard_harness.compare.request import CaptureRequest, CompareRequest, SideRequest
from opguard_harness.compare.sides import ProgramSide, TraceSide
from opguard_harness.config import runs_dir
from opguard_harness.errors import InvalidArguments, NotReplayable
from opguard_harness.interface.parsing import parse_arguments
from opguard_harness.registry import find
from opguard_harness.report.progress import Silent
from tests.support.blocks import normal
from tests.support.driving.world import BROKEN, PROGRAM
from tests.support.kept import kept
from tests.support.synthetic import Corrupt, Side, source_texts, write_run
from tests.unit.evidence.conftest import EQUAL, store

ELSEWHERE = Side(PROGRAM, [Corrupt(PROGRAM.find(1, operator="aten.addmm.default")[0])])


class _Job(Silent):
    job = "confirm-0123456789ab"


def call(comparison: str, **given: Any) -> Any:
    """The tool, as its supervisor carries it out."""
    tool = find("confirm_difference")
    return tool.run(parse_arguments(tool, {"comparison": comparison, **given}), _Job())


@pytest.fixture
def programs(tmp_path):
    """Folders that hold what the synthetic runs executed."""
    folders = {}
    for side in SIDES:
        folders[side] = tmp_path / side
        for file, text in source_texts(EQUAL).items():
            path = folders[side] / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    return folders


@pytest.fixture
def compared(programs):
    """A comparison with the record of its programs; returns its id and the way to write another record."""
    stored = store()

    def record(**changes: Any) -> str:
        sides = tuple(ProgramSide(side, programs[side], ("python", "train.py"), {}, programs[side]) for side in SIDES)
        sides = tuple(replace(side, **changes.get(side.name, {})) for side in sides)
        request = CompareRequest(SideRequest(programs["reference"]), SideRequest(programs["suspect"]), CaptureRequest())
        write_programs(runs_dir() / stored.comparison, (sides[0], sides[1]), request)
        return stored.comparison

    return record


def keep_one(trace: Path, key: BoundaryKey, made: Kept) -> None:
    """Write bytes as what a run kept of a boundary of its trace."""
    seq = find_boundary(Run.open(trace).ranks[key.rank], key)
    assert seq is not None
    write_kept(trace / rank_folder(key.rank) / kept_file(0), replace(made, boundary=key, seq=seq))


@pytest.fixture
def replayed(monkeypatch):
    """Stand-ins for the runs of a replay; returns where to put what they execute, and what was asked for."""
    asked: dict[str, Any] = {"sides": (EQUAL, BROKEN), "runs": []}

    def run_all(sides, interpreter, capture, results, progress, below=""):
        asked["runs"].append((sides, capture))
        if isinstance(asked["sides"], Exception):
            raise asked["sides"]
        found = []
        for side, executed in zip(sides, asked["sides"], strict=True):
            folder = results.partial / below / side.name
            folder.mkdir(parents=True)
            found.append(SideRun(side.name, write_run(folder / "trace", executed, mode="verify"), 0, 1.0))
            if "keeps" in asked:
                keep_one(found[-1].trace, capture.keep[side.name].boundaries[0], asked["keeps"])
        return found[0], found[1]

    monkeypatch.setattr(confirming, "run_all", run_all)
    monkeypatch.setattr(confirming, "find", lambda python: None)
    return asked


def test_what_comes_again_at_the_same_place_is_reproduced(compared, replayed, programs):
    result = call(compared())
    assert (result.outcome, result.verdict, result.comparison) == ("same place", "diverged", _Job.job)
    (sides, capture), *_ = replayed["runs"]
    assert capture.mode == "verify"
    assert [side.argv for side in sides] == [("python", "train.py")] * 2
    assert not any(side.folder.is_relative_to(folder) for side, folder in zip(sides, programs.values(), strict=True))
    assert all(Path(trace).is_dir() for trace in result.traces.values())
    assert find("first_difference").run(parse_arguments(find("first_difference"), {"comparison": result.comparison})).verdict == "diverged"


def test_what_comes_at_another_place_says_so(compared, replayed):
    replayed["sides"] = (EQUAL, ELSEWHERE)
    assert call(compared()).outcome == "another place"


def test_what_does_not_come_again_is_not_reproduced(compared, replayed):
    replayed["sides"] = (EQUAL, EQUAL)
    result = call(compared())
    assert (result.outcome, result.verdict, result.pivot) == ("not reproduced", "identical", {})
    assert "identical" in result.why
    assert all(Path(trace).is_dir() for trace in result.traces.values())


def test_a_replay_that_fails_is_an_answer_with_its_reason(compared, replayed):
    replayed["sides"] = LaunchFailed("The reference side did not start.")
    result = call(compared())
    assert (result.outcome, result.comparison) == ("not reproduced", "")
    assert "did not start" in result.why


def test_sources_that_changed_since_are_refused_by_name(compared, replayed, programs):
    comparison = compared()
    file = next(path for path in programs["suspect"].rglob("*.py"))
    file.write_text(file.read_text() + "\n# edited\n")
    with pytest.raises(NotReplayable, match=f"suspect .*{file.name} changed"):
        call(comparison)
    assert replayed["runs"] == []


def test_a_side_that_was_a_trace_cannot_run_again(compared, replayed):
    comparison = compared()
    folder = runs_dir() / comparison
    sides = ProgramSide("reference", folder, ("python", "train.py"), {}, folder), TraceSide("suspect", folder)
    write_programs(folder, sides, CompareRequest(SideRequest(folder), SideRequest(folder)))
    with pytest.raises(NotReplayable, match="suspect of this comparison is a trace"):
        call(comparison)
    assert not is_replayable(folder)


def test_a_comparison_without_a_record_is_refused(replayed):
    stored = store()
    with pytest.raises(NotReplayable, match="reference and the suspect of this comparison are traces"):
        call(stored.comparison)
    (runs_dir() / stored.comparison / "programs.json").unlink()
    with pytest.raises(NotReplayable, match="no record"):
        call(stored.comparison)


def test_values_of_variables_are_not_kept_and_asked_for_again(compared, replayed):
    comparison = compared(suspect={"env": {"DATA": "a-secret"}})
    assert "a-secret" not in (runs_dir() / comparison / "programs.json").read_text()
    with pytest.raises(NotReplayable, match="needs the variables DATA again"):
        call(comparison)
    with pytest.raises(NotReplayable, match="ran without OTHER"):
        call(comparison, suspect_env=["DATA=1", "OTHER=2"])
    assert call(comparison, suspect_env=["DATA=1"]).outcome == "same place"
    assert replayed["runs"][0][0][1].env == {"DATA": "1"}


def test_words_that_look_like_secrets_are_not_kept_and_so_not_run_again(compared, replayed):
    comparison = compared(reference={"argv": ("python", "train.py", "--api-key", "sk-123456789012345678901234")})
    assert "sk-1234" not in (runs_dir() / comparison / "programs.json").read_text()
    with pytest.raises(NotReplayable, match="look like secrets"):
        call(comparison)


def test_a_comparison_without_a_first_difference_has_nothing_to_confirm(replayed):
    with pytest.raises(InvalidArguments, match="no first difference"):
        call(store(EQUAL).comparison)


def test_what_cannot_be_confirmed_is_refused_before_there_is_a_job():
    tool = find("confirm_difference")
    with pytest.raises(InvalidArguments, match="no first difference"):
        tool.check(parse_arguments(tool, {"comparison": store(EQUAL).comparison}))


def test_a_folder_that_is_gone_is_refused(compared, replayed, programs):
    comparison = compared()
    shutil.rmtree(programs["reference"])
    with pytest.raises(NotReplayable, match="is gone"):
        call(comparison)


@pytest.mark.parametrize("damage", ["{", "[]", '{"reference": {"kind": "program"}, "suspect": {"kind": "program"}}'])
def test_a_damaged_record_is_no_record(compared, damage):
    folder = runs_dir() / compared()
    assert read_programs(folder).suspect.argv == ("python", "train.py")
    (folder / "programs.json").write_text(damage)
    with pytest.raises(NotReplayable, match="no record"):
        read_programs(folder)


def test_files_that_a_run_made_and_took_away_do_not_count_as_changed(compared, programs):
    stored = runs_dir() / "run-000000000002" / "trace"
    program = Program("suspect", programs["suspect"], ("python",), (), "", whole=True)
    assert changed_files(program, programs["suspect"], stored) == []
    assert changed_files(program, programs["suspect"] / "nowhere", stored) != []


def test_first_difference_offers_what_can_be_done(compared):
    comparison = compared()
    offered = find("first_difference").run(parse_arguments(find("first_difference"), {"comparison": comparison})).next
    assert "confirm_difference" in [item.tool for item in offered]
    record = json.loads((runs_dir() / comparison / "programs.json").read_text())
    record["suspect"]["env"] = ["DATA"]
    (runs_dir() / comparison / "programs.json").write_text(json.dumps(record))
    offered = find("first_difference").run(parse_arguments(find("first_difference"), {"comparison": comparison})).next
    assert "confirm_difference" not in [item.tool for item in offered]


def test_each_side_is_asked_to_keep_its_own_first_difference(compared, replayed):
    call(compared())
    (_, capture), *more = replayed["runs"]
    keys = {side: keep.boundaries[0] for side, keep in capture.keep.items()}
    assert {side: (key.operator, key.step) for side, key in keys.items()} == dict.fromkeys(SIDES, ("aten.gelu.default", 1))
    assert not more, "the replay's own first difference is the same one: a second replay would keep no more"


def test_what_comes_at_another_place_is_replayed_once_more_to_keep_that(compared, replayed):
    replayed["sides"] = (EQUAL, ELSEWHERE)
    assert call(compared()).outcome == "another place"
    operators = [capture.keep["suspect"].boundaries[0].operator for _, capture in replayed["runs"]]
    assert operators == ["aten.gelu.default", "aten.addmm.default"]


def test_without_kept_tensors_it_says_why_and_nothing_of_bytes(compared, replayed):
    result = call(compared())
    assert (result.damage, result.repro) == ({}, "")
    assert "did not occur" in result.why
    assert "damage" not in result.summary
    assert not (runs_dir() / result.comparison / "damage.json").exists()


def test_bytes_that_were_not_fingerprinted_are_no_comparison(compared, replayed):
    replayed["keeps"] = kept(in_0=normal(4, 4), out_0=normal(4, 4, seed=1))
    result = call(compared())
    assert len(replayed["runs"]) == 1
    assert "the bytes that were kept are not the ones that were fingerprinted, so they were not compared" in result.summary
    assert result.damage["class"] == "unknown"
    stored = json.loads((runs_dir() / result.comparison / "damage.json").read_text())
    assert {slot["state"] for slot in stored["slots"]} == {"not compared"}
    assert [item.id.rpartition("/")[2] for item in result.evidence if item.id.startswith("job:")] == ["damage", "kept", "repro"]


def test_a_replay_without_an_answer_is_not_said_to_show_that_nothing_differs(compared, replayed):
    replayed["sides"] = LaunchFailed("The reference side did not start.")
    result = call(compared())
    assert "gave no answer, so nothing is known" in result.summary
