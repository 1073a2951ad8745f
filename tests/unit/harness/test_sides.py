"""What the user names becomes a program to run or a trace to read."""

import subprocess
from pathlib import Path

import pytest

from opguard_core.errors import ConflictingOptions
from opguard_harness.access.traces import trace_folder
from opguard_harness.compare.request import CompareRequest, SideRequest
from opguard_harness.compare.sides import TraceSide, resolve
from opguard_harness.errors import SideNotFound


def program(folder: Path, *names: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names or ("train.py",):
        (folder / name).write_text("print(1)\n")
    return folder


def sides(tmp_path, reference, suspect, **options):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    return resolve(CompareRequest(reference, suspect, **options), scratch)


def test_folders_run_the_default_command_and_their_own_words(tmp_path):
    a, b = program(tmp_path / "a"), program(tmp_path / "b")
    reference, suspect = sides(tmp_path, SideRequest(a, ("--lr", "1"), {"A": "1"}), SideRequest(b))
    assert (reference.name, reference.folder, reference.argv, reference.env) == (
        "reference",
        a,
        ("python", "train.py", "--lr", "1"),
        {"A": "1"},
    )
    assert (suspect.name, suspect.folder, suspect.argv) == ("suspect", b, ("python", "train.py"))


def test_the_same_folder_twice_runs_the_second_time_in_a_private_copy(tmp_path):
    a = program(tmp_path / "a")
    (tmp_path / "link").symlink_to(a)
    reference, suspect = sides(tmp_path, SideRequest(a), SideRequest(tmp_path / "link"))
    assert reference.folder == a
    assert suspect.folder == tmp_path / "scratch" / "suspect"
    assert (suspect.folder / "train.py").exists()
    assert suspect.origin == tmp_path / "link"


def test_a_script_runs_in_its_folder_in_place_of_the_one_in_the_command(tmp_path):
    a = program(tmp_path / "a", "one.py")
    b = program(tmp_path / "b", "two.py")
    reference, suspect = sides(
        tmp_path, SideRequest(a / "one.py"), SideRequest(b / "two.py"), argv=("torchrun", "--nproc-per-node", "2", "train.py", "-x", "y.py")
    )
    assert reference.folder == a
    assert reference.argv == ("torchrun", "--nproc-per-node", "2", "one.py", "-x", "y.py")
    assert suspect.argv[3] == "two.py"


def test_two_scripts_of_one_folder_are_two_programs(tmp_path):
    a = program(tmp_path / "a", "one.py", "two.py")
    reference, suspect = sides(tmp_path, SideRequest(a / "one.py"), SideRequest(a / "two.py"))
    assert (reference.argv[-1], suspect.argv[-1]) == ("one.py", "two.py")
    assert suspect.folder != reference.folder


def test_a_trace_is_read_and_takes_no_options(tmp_path):
    trace = tmp_path / "out" / "reference" / "trace"
    (trace / "rank-00000").mkdir(parents=True)
    (trace / "rank-00000" / "manifest.json").write_text("{}")
    a = program(tmp_path / "a")
    reference, suspect = sides(tmp_path, SideRequest(tmp_path / "out" / "reference"), SideRequest(a))
    assert reference == TraceSide("reference", trace)
    assert suspect.folder == a
    with pytest.raises(ConflictingOptions, match="--reference-args"):
        resolve(CompareRequest(SideRequest(trace, ("x",)), SideRequest(a)), tmp_path)


def test_a_training_folder_with_rank_folders_of_its_own_is_no_trace(tmp_path):
    a = program(tmp_path / "a")
    (a / "rank-0").mkdir()
    (a / "rank-00000").mkdir()
    (a / "rank-00000" / "optimizer.pt").touch()
    assert trace_folder(a) is None


def test_what_is_not_there_is_named(tmp_path):
    a = program(tmp_path / "a", "notes.txt")
    for missing in (tmp_path / "nope", a / "notes.txt"):
        with pytest.raises(SideNotFound, match=f"--suspect {missing}"):
            resolve(CompareRequest(SideRequest(a), SideRequest(missing)), tmp_path)


def test_a_commit_of_the_same_folder_is_not_a_self_replay(tmp_path):
    a = program(tmp_path / "a")
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false", "-C", str(a)]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "one"]):
        subprocess.run([*git, *words], check=True)
    (a / "train.py").write_text("print(2)\n")
    reference, suspect = sides(tmp_path, SideRequest(a, commit="HEAD"), SideRequest(a))
    assert (reference.folder / "train.py").read_text() == "print(1)\n"
    assert suspect.folder == a
