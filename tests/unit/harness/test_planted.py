"""The shipped pairs as data, and how a difference is planted; what the comparison says of them is tested with torch."""

import re
import sys
from pathlib import Path, PurePosixPath

import pytest

from opguard_core.errors import DependencyMissing, EnvironmentUnsupported, UnknownOption
from opguard_harness.__main__ import main
from opguard_harness.workspace.planted import FIRST, Edit, Pair, find_pair, pairs, shadow, stage
from tests.support.answers import answer, pivot, place
from tests.support.fake_training import REPOSITORY

ALL = list(pairs())
PLANTED = [pair for pair in ALL if pair.expected]
EXPECTED = {"step": 2, "file": "a.py", "text": "x + 1", "origin": "argument"}


def a_pair(**facts):
    return Pair(**{"example": "tiny_gpt", "name": "n", "what": "w", "launch": ("python", "train.py"), **facts})


def test_the_first_example_comes_first_and_names_are_unique():
    assert ALL[0].example == FIRST
    assert len({pair.title for pair in ALL}) == len(ALL)
    assert {path.parent.name for path in (REPOSITORY / "examples").glob("*/reference")} == {pair.example for pair in ALL}


@pytest.mark.parametrize("pair", ALL, ids=lambda pair: pair.title)
def test_a_pair_is_there_and_its_edits_fit(pair):
    assert (pair.folder / "reference").is_dir()
    assert (pair.folder / "README.md").is_file() or pair.example == FIRST
    for edit in pair.edits:
        if not edit.package:
            assert (pair.folder / pair.base / edit.file).read_text("utf-8").count(edit.old) == 1
        else:
            assert edit.package in pair.needs


@pytest.mark.parametrize("pair", PLANTED, ids=lambda pair: pair.title)
def test_the_planted_place_is_in_the_source(pair):
    texts = [path.read_text("utf-8") for path in pair.folder.glob(f"*/{PurePosixPath(pair.expected['file']).name}")]
    for edit in pair.edits:
        texts = [text.replace(edit.old, edit.new) for text in texts] + [edit.new]
    assert any(pair.expected["text"] in text for text in texts)
    assert {"step", "file", "text", "origin"} <= pair.expected.keys()


def test_the_kinds_of_places_and_sleeping_plants_that_were_promised_are_there():
    assert sum(pair.expected["step"] >= 2 for pair in PLANTED) >= 5
    assert {edit.package for pair in PLANTED for edit in pair.edits} >= {"", "transformers"}
    assert {pair.example for pair in ALL if not pair.expected} == {pair.example for pair in ALL} - {FIRST}
    assert {pair.launch[0] for pair in ALL} == {"python", "torchrun", "accelerate"}


def test_the_readmes_name_pairs_that_exist():
    known = {pair.title for pair in ALL}
    for path in (REPOSITORY / "examples").glob("*/README.md"):
        named = set(re.findall(r"opguard-harness demo (\S+)", path.read_text("utf-8")))
        assert named
        assert named <= known, path


@pytest.mark.parametrize(
    ("found", "changes"),
    [
        ("diverged", {"step": 3}),
        ("diverged", {"origin": "operator"}),
        ("diverged", {"rank": 1}),
        ("diverged", {"suspect": place("b.py", text="x + 1")}),
        ("diverged", {"suspect": place("a.py", text="x + 2")}),
        ("inconclusive", None),
        ("identical", None),
    ],
)
def test_another_answer_is_a_miss(found, changes):
    right = {"step": 2, "origin": "argument", "rank": 0, "suspect": place("a.py", text="x + 1")}
    given = None if changes is None else pivot(**{**right, **changes})
    planted = a_pair(expected={**EXPECTED, "rank": 0})
    assert planted.missed(answer("diverged", pivot=pivot(**right))) == ""
    assert planted.missed(answer(found, pivot=given)).startswith(found)
    assert a_pair().missed(answer("identical")) == ""
    assert bool(a_pair().missed(answer(found, pivot=given))) == (found != "identical")


def test_work_that_the_suspect_lacks_is_looked_for_in_the_reference():
    lacking = pivot(step=2, suspect=None, reference=place("a.py", text="x + 1"))
    assert a_pair(expected=EXPECTED).missed(answer("diverged", pivot=lacking)) == ""


def test_a_name_finds_a_pair_and_an_example_its_first_plant():
    assert find_pair(FIRST).expected
    assert find_pair("ddp") == next(pair for pair in PLANTED if pair.example == "ddp")
    assert find_pair("ddp/refactored").expected == {}
    with pytest.raises(UnknownOption, match="ddp/shard"):
        find_pair("ddp/nothing")


@pytest.fixture
def package(tmp_path):
    folder = tmp_path / "site-packages" / "pack"
    (folder / "inner" / "deep").mkdir(parents=True)
    (folder / "__pycache__").mkdir()
    for name in ("__init__.py", "inner/__init__.py", "inner/other.py", "inner/deep/changed.py"):
        (folder / name).write_text(f"# {name}\n")
    return folder


def test_a_shadowed_package_has_one_file_of_its_own(package, tmp_path):
    copy = shadow(package, tmp_path / "packages" / "pack", PurePosixPath("inner/deep/changed.py"))
    changed = copy / "inner" / "deep" / "changed.py"
    changed.write_text("# changed\n")
    assert (package / "inner" / "deep" / "changed.py").read_text() == "# inner/deep/changed.py\n"
    own = [path for path in copy.rglob("*") if path.is_file() and not any(p.is_symlink() for p in (path, *path.parents))]
    assert own == [changed]
    assert (copy / "inner" / "other.py").read_text() == "# inner/other.py\n"
    assert not (copy / "__pycache__").exists()
    shadow(package, copy, PurePosixPath("inner/other.py"))
    assert changed.read_text() == "# changed\n"
    assert not (copy / "inner" / "other.py").is_symlink()


def test_a_pair_is_staged_with_its_plant_and_the_example_stays_as_it_is(tmp_path):
    pair = find_pair("ddp/shard")
    before = {path: path.read_bytes() for path in pair.folder.rglob("*") if path.is_file()}
    reference, suspect = stage(pair, tmp_path, Path(sys.executable))
    assert pair.edits[0].new in (suspect.path / "data.py").read_text()
    assert (reference.path / "train.py").read_text() == (pair.folder / "reference" / "train.py").read_text()
    assert suspect.env == {}
    assert {path: path.read_bytes() for path in pair.folder.rglob("*") if path.is_file()} == before


def test_a_missing_package_is_an_error_with_the_install_line(tmp_path):
    with pytest.raises(DependencyMissing, match="pip install no_such_package_at_all"):
        stage(a_pair(needs=("no_such_package_at_all",)), tmp_path, Path(sys.executable))


@pytest.mark.parametrize("old", ["nowhere in the file", "import torch"])
def test_a_file_that_the_edit_is_not_for_is_an_error(tmp_path, old):
    text = "import torch" if old == "import torch" else ""
    edits = (Edit("train.py", old, old + text), Edit("train.py", "import torch", "x"))
    with pytest.raises(EnvironmentUnsupported, match="cannot be planted"):
        stage(a_pair(edits=edits), tmp_path, None)


def test_the_list_names_all_pairs_and_runs_nothing(capsys):
    assert main(["demo", "--list"]) == 0
    printed = capsys.readouterr().out
    assert [line.split()[0] for line in printed.splitlines()] == [pair.title for pair in ALL]


def test_an_unknown_example_is_an_error(capsys):
    assert main(["demo", "nothing", "--json"]) == 2
    assert '"unknown-option"' in capsys.readouterr().out
