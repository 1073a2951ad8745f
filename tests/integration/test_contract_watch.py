"""`compare` says at once that settings differ, while the second program still runs, and ends it if that was asked for.

With a stand-in for the training Python: programs leave synthetic traces whose contract the test writes.
"""

import json
import os
import shutil

import pytest

from opguard_core.contract.compare import compare as differences
from opguard_core.errors import ContractStopped
from opguard_core.trace.manifest import RankManifest, write_manifest
from opguard_harness.__main__ import main
from opguard_harness.compare.contract_watch import MAX_TOLD, ContractWatch
from opguard_harness.report.progress import Progress
from tests.support.fake_training import fake_program, fake_python

EARLY = {"torch.version": "2.13", "env.OMP_NUM_THREADS": "1"}
LATE = {**EARLY, "late": "first optimizer step", "flags.float32_matmul_precision": "highest"}
HIGH = {**LATE, "flags.float32_matmul_precision": "high"}
WARNING = "warning: contract: flags.float32_matmul_precision: reference highest, suspect high (arithmetic)"


class Said(Progress):
    """Keeps what was said."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def say(self, text):
        self.lines.append(text)


def tell(trace, contract, rank=0):
    folder = trace / f"rank-{rank:05d}"
    folder.mkdir(parents=True, exist_ok=True)
    write_manifest(folder, RankManifest(rank=rank, contract=contract))


@pytest.fixture
def traces(tmp_path):
    tell(tmp_path / "reference", LATE)
    return tmp_path / "reference", tmp_path / "suspect"


def test_a_difference_is_said_once_and_as_soon_as_it_is_on_disk(traces):
    said = Said()
    watch = ContractWatch("suspect", traces[1], traces[0], said)
    watch.look()
    assert said.lines == []
    tell(traces[1], {**EARLY, "torch.version": "2.12"})
    watch.look()
    assert said.lines == ["warning: contract: torch.version: reference 2.13, suspect 2.12 (arithmetic)"]
    tell(traces[1], {**HIGH, "torch.version": "2.12"})
    watch.look()
    watch.look()
    assert said.lines[1:] == [WARNING]


def test_only_what_changes_arithmetic_is_said_and_late_facts_are_waited_for(traces):
    said = Said()
    watch = ContractWatch("suspect", traces[1], traces[0], said, stop=True)
    tell(traces[1], {**EARLY, "env.OMP_NUM_THREADS": "2", "python.version": "3.12"})
    watch.look()
    assert said.lines == []
    with pytest.raises(ContractStopped, match=r"flags\.float32_matmul_precision: reference highest, suspect high"):
        tell(traces[1], HIGH)
        watch.look()


def test_the_sides_keep_their_places_when_the_reference_runs_last(traces):
    said = Said()
    tell(traces[1], HIGH)
    ContractWatch("reference", traces[0], traces[1], said).look()
    assert said.lines == [WARNING]


def test_many_differences_are_cut_and_a_damaged_manifest_is_left_to_the_judge(traces):
    said = Said()
    tell(traces[1], {**LATE, **{f"flags.x{number}": number for number in range(40)}})
    watch = ContractWatch("suspect", traces[1], traces[0], said)
    watch.look()
    assert len(differences(LATE, {**LATE, **{f"flags.x{n}": n for n in range(40)}})) == 40
    assert len(said.lines) == MAX_TOLD + 1
    (traces[1] / "rank-00000" / "manifest.json").write_text("{")
    watch.look()
    assert len(said.lines) == MAX_TOLD + 1


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "bin").mkdir()
    return tmp_path


def run(place, capsys, *words):
    python = fake_python(place / "bin")
    sides = ["--reference", str(place / "a"), "--suspect", str(place / "b"), "--out", str(place / "out")]
    code = main(["compare", "--json", "--python", str(python), *sides, *words])
    printed = capsys.readouterr()
    return code, json.loads(printed.out), printed.err.splitlines()


def test_compare_warns_on_standard_error_and_still_answers(place, capsys):
    fake_program(place / "a", contract=LATE)
    fake_program(place / "b", contract=HIGH)
    code, answer, said = run(place, capsys)
    assert code == 0
    assert said.index(WARNING) < said.index("comparing the traces")
    assert [(item["key"], item["severity"]) for item in answer["contract"]] == [("flags.float32_matmul_precision", "arithmetic")]


def test_equal_contracts_warn_of_nothing(place, capsys):
    for name in "ab":
        fake_program(place / name, contract=LATE)
    code, _, said = run(place, capsys, "--stop-on-contract")
    assert code == 0
    assert not [line for line in said if line.startswith("warning")]


def test_stop_on_contract_ends_a_program_that_would_run_on(place, capsys):
    fake_program(place / "a", contract=LATE)
    fake_program(place / "b", contract=HIGH, hang=True)
    code, answer, said = run(place, capsys, "--stop-on-contract", "--timeout", "100")
    assert code == 2
    assert answer["error"]["slug"] == "contract-stopped"
    assert "reference highest, suspect high (arithmetic)" in answer["error"]["text"]
    assert WARNING in said
    assert not (place / "out").exists()
    assert (place / "out.failed" / "suspect" / "trace").exists()


def test_a_trace_of_an_earlier_run_is_warned_about_too(place, capsys):
    fake_program(place / "a", contract=LATE)
    fake_program(place / "b", contract=HIGH)
    assert run(place, capsys)[0] == 0
    (place / "out" / "suspect" / "trace").rename(place / "kept")
    shutil.rmtree(place / "out")
    shutil.rmtree(place / "b")
    os.rename(place / "kept", place / "b")
    assert WARNING in run(place, capsys)[2]
