"""`compare` as a command, with a stand-in for the training Python: exit codes, the one JSON object, folders, sides.

What capture and certification say about real programs is tested elsewhere; here both sides leave synthetic traces.
"""

import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from opguard_harness.__main__ import main
from opguard_harness.answer.schema import compare_schema
from opguard_harness.answer.validate import faults
from opguard_harness.compare import processes
from tests.support.answers import answer, pivot
from tests.support.fake_training import REPOSITORY, fake_program, fake_python


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "bin").mkdir()
    return tmp_path


@pytest.fixture
def python(place):
    return fake_python(place / "bin")


def snapshot(folder):
    return {
        path.relative_to(folder): (path.lstat().st_mtime_ns, path.read_bytes() if path.is_file() else b"") for path in folder.rglob("*")
    }


@pytest.fixture
def compare(place, python, capsys):
    def run(*words, code, out=place / "out"):
        """Run the command in this process; return the one object it printed."""
        options = ["--json", "--python", str(python), *(["--out", str(out)] if out else [])]
        assert main(["compare", *options, *map(str, words)]) == code, capsys.readouterr()
        answer = json.loads(capsys.readouterr().out)
        assert faults(answer, compare_schema()) == []
        return answer

    return run


def sides(place, reference=None, suspect=None):
    a = fake_program(place / "a", **(reference or {}))
    b = fake_program(place / "b", **(suspect or {}))
    return "--reference", a, "--suspect", b


def leftovers(place):
    """What a finished or interrupted command must not leave."""
    found = [path for path in place.iterdir() if ".partial" in path.name or ".failed" in path.name]
    scratch = place / "cache" / "opguard" / "scratch"
    return found + (list(scratch.iterdir()) if scratch.exists() else [])


def test_equal_programs_are_identical_and_the_results_are_private_and_whole(place, compare):
    answer = compare(*sides(place), code=0)
    assert answer["verdict"] == "identical"
    assert answer["prefix"]["pairs"] > 0
    assert answer["exit"] == {"reference": 0, "suspect": 0}
    assert answer["trace"] == {side: str(place / "out" / side / "trace") for side in ("reference", "suspect")}
    assert json.loads((place / "out" / "answer.json").read_text()) == answer
    assert stat.S_IMODE((place / "out").stat().st_mode) == 0o700
    assert (place / "out" / "reference" / "stdout.txt").read_text().startswith("argv: ")
    assert not leftovers(place)


def test_a_difference_is_diverged_and_exit_code_1(place, compare):
    answer = compare(*sides(place, suspect={"corrupt": True}), "--mode", "verify", code=1)
    assert answer["verdict"] == "diverged"
    assert (answer["pivot"]["step"], answer["pivot"]["operator"], answer["pivot"]["origin"]) == (1, "aten.gelu.default", "operator")
    assert answer["mode"] == "verify"


def test_a_crash_on_one_side_still_compares_what_exists_and_says_so(place, compare):
    answer = compare(*sides(place, suspect={"stop": 90, "exit": 1}), code=3)
    assert answer["exit"] == {"reference": 0, "suspect": 1}
    assert answer["prefix"]["pairs"] > 0
    assert answer["reasons"]


def test_a_difference_before_a_crash_is_still_found(place, compare):
    answer = compare(*sides(place, reference={"exit": 1}, suspect={"corrupt": True, "exit": 1}), code=1)
    assert answer["exit"] == {"reference": 1, "suspect": 1}


def test_equal_traces_with_unequal_exit_codes_are_not_called_identical(place, compare):
    answer = compare(*sides(place, suspect={"exit": 5}), code=3)
    assert "exit-codes-differ" in [reason["slug"] for reason in answer["reasons"]]


def test_a_side_ended_by_a_signal_has_a_negative_exit(place, compare):
    assert compare(*sides(place, suspect={"signal": signal.SIGKILL}), code=3)["exit"]["suspect"] == -signal.SIGKILL


def test_nothing_captured_is_an_error_with_the_reason_and_keeps_the_output(place, compare):
    answer = compare(*sides(place, suspect={"nothing": True}), code=2)
    assert answer["error"]["slug"] == "nothing-captured"
    assert "suspect: The program 'train.py' never imported torch." in answer["error"]["text"]
    assert not (place / "out").exists()
    assert "numppy" in (place / "out.failed" / "suspect" / "stderr.txt").read_text()
    assert str(place / "out.failed" / "suspect" / "stderr.txt") in answer["error"]["fix"]


def test_a_program_in_the_home_folder_agrees_with_itself_and_nothing_is_written_there(place, compare, monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("XDG_STATE_HOME")
    home = fake_program(place / "home")
    monkeypatch.setenv("HOME", str(home))
    before = snapshot(home)
    assert compare("--reference", home, "--suspect", home, code=0)["verdict"] == "identical"
    assert snapshot(home) == before


def test_a_side_that_hangs_is_ended_after_the_timeout(place, compare, monkeypatch):
    class Clock:
        """Jumps ahead once the suspect hangs, so that the test waits for that and for nothing else."""

        def monotonic(self):
            hangs = any("hanging" in path.read_text() for path in place.glob(".out.partial-*/suspect/stdout.txt"))
            return time.monotonic() + (1000 if hangs else 0)

    monkeypatch.setattr(processes, "time", Clock())
    answer = compare(*sides(place, suspect={"hang": True}), "--timeout", "900", code=2)
    assert answer["error"]["slug"] == "timed-out"
    # What it had captured is kept and can be compared.
    kept = place / "out.failed"
    assert compare("--reference", kept / "reference", "--suspect", kept / "suspect", code=0, out=place / "again")["verdict"] == "identical"


def test_the_folders_of_both_sides_stay_untouched(place, compare):
    words = sides(place, suspect={"corrupt": True})
    before = snapshot(place / "a"), snapshot(place / "b")
    compare(*words, code=1)
    assert (snapshot(place / "a"), snapshot(place / "b")) == before


def test_the_same_folder_twice_does_not_see_what_the_first_run_wrote(place, compare):
    a = fake_program(place / "a", writes="log.txt")
    compare("--reference", a, "--suspect", a, code=0)
    assert (a / "log.txt").read_text() == "a line\n"
    assert not leftovers(place)


def test_each_side_gets_its_words_variables_and_port(place, compare):
    show = {"show": ["COLOUR", "PYTHONDONTWRITEBYTECODE"]}
    words = sides(place, show, show)
    compare(*words, "--suspect-args", "--lr '1 2'", "--reference-env", "COLOUR=red", "--", "python", "train.py", "-x", code=0)
    reference, suspect = ((place / "out" / side / "stdout.txt").read_text().splitlines() for side in ("reference", "suspect"))
    assert reference[0].endswith("fake-python train.py -x")
    assert suspect[0].endswith("fake-python train.py -x --lr 1 2")
    assert reference[1].startswith("MASTER_PORT=")
    assert reference[1] != suspect[1]
    assert reference[2:] == ["COLOUR=red", "PYTHONDONTWRITEBYTECODE=1"]
    assert suspect[2] == "COLOUR=None"


def test_a_port_that_the_user_sets_is_left_alone(place, compare):
    compare(*sides(place), "--reference-env", "MASTER_PORT=29123", code=0)
    assert "MASTER_PORT=29123" in (place / "out" / "reference" / "stdout.txt").read_text()


def test_traces_can_be_compared_again_without_running_anything(place, compare):
    first = compare(*sides(place, suspect={"corrupt": True, "exit": 4}), code=1)
    second = compare(
        "--reference", place / "out" / "reference", "--suspect", place / "out" / "suspect" / "trace", code=1, out=place / "two"
    )
    assert second["pivot"] == first["pivot"]
    assert second["exit"] == {"reference": 0, "suspect": 4}
    assert sorted(path.name for path in (place / "two").iterdir()) == ["answer.json", "programs.json"]


def test_a_trace_can_be_compared_with_a_program(place, compare):
    compare(*sides(place, suspect={"corrupt": True}), code=1)
    answer = compare("--reference", place / "out" / "reference", "--suspect", place / "b", code=1, out=place / "two")
    assert answer["trace"]["reference"] == str(place / "out" / "reference" / "trace")


def test_a_commit_of_the_folders_repository_is_compared(place, compare):
    a = fake_program(place / "a")
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false", "-C", str(a)]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "one"]):
        subprocess.run([*git, *words], check=True)
    (a / "fake.json").write_text(json.dumps({"corrupt": True}))
    before = snapshot(a)
    assert compare("--suspect", a, "--reference-commit", "HEAD", code=1)["verdict"] == "diverged"
    assert snapshot(a) == before
    assert not leftovers(place)


def test_a_contract_that_conflicts_in_arithmetic_is_no_verdict(place, compare):
    words = sides(place, {"contract": {"torch.version": "2.13.0"}}, {"contract": {"torch.version": "2.12.0"}, "corrupt": True})
    answer = compare(*words, code=3)
    assert answer["contract"] == [{"key": "torch.version", "severity": "arithmetic", "reference": "2.13.0", "suspect": "2.12.0"}]
    assert "contract-conflict" in [reason["slug"] for reason in answer["reasons"]]


def test_a_window_that_was_never_reached_is_an_error(place, compare):
    assert compare(*sides(place), "--steps", "7:9", code=2)["error"]["slug"] == "window-not-reached"


@pytest.mark.parametrize(
    ("words", "slug"),
    [
        (["--reference", "a", "--suspect", "nope"], "side-not-found"),
        (["--reference", "a", "--suspect", "b", "--out", "a/out"], "out-refused"),
        (["--reference", "a", "--suspect", "b", "--out", "bin"], "out-refused"),
        (["--reference", "a", "--suspect", "b", "--mode", "telescope"], "unknown-option"),
        (["--reference", "a", "--suspect", "b", "--steps", "5:2"], "config"),
        (["--reference", "a", "--suspect", "b", "--timeout", "0"], "config"),
        (["--reference", "a", "--suspect", "b", "--timeout", "soon"], "usage"),
        (["--reference", "a", "--suspect", "b", "--reference-env", "X"], "config"),
        (["--reference", "a", "--suspect", "b", "--suspect-args", "'"], "config"),
        (["--reference", "a", "--suspect", "b", "--python", "no-such"], "no-training-python"),
        (["--reference", "a", "--suspect", "b", "--reference-commit", "HEAD"], "commit-not-found"),
        (["--reference", "a", "--suspect", "b", "--", "torchrun", "train.py"], "launch-failed"),
        (["--suspect", "b"], "usage"),
        (["--reference", "a", "--suspect", "b", "--wat"], "usage"),
    ],
    ids=lambda value: " ".join(value[4:] or value) if isinstance(value, list) else value,
)
def test_what_cannot_be_carried_out_is_one_clear_error(place, python, monkeypatch, capsys, words, slug):
    sides(place)
    monkeypatch.chdir(place)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(place.parent))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    python_option = [] if "--python" in words else ["--python", str(python)]
    assert main(["compare", "--json", *python_option, *words]) == 2
    answer = json.loads(capsys.readouterr().out)
    assert answer["error"]["slug"] == slug
    assert answer["error"]["fix"]
    assert not leftovers(place)


def test_people_get_six_lines_and_programs_one_object(place, python, capsys):
    words = [*map(str, sides(place, suspect={"corrupt": True})), "--python", str(python), "--out", str(place / "out")]
    assert main(["compare", *words]) == 1
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == 6
    assert captured.out.startswith("diverged    step 1, ")
    assert [line.split(":")[0] for line in captured.err.splitlines()] == ["reference", "suspect", "comparing the traces"]


def test_an_untested_pair_is_said_when_the_comparison_starts(place, capsys):
    python = fake_python(place / "bin", version="3.12.1")
    assert main(["compare", *map(str, sides(place)), "--python", str(python), "--out", str(place / "out")]) == 0
    assert "note: Python 3.12.1 with torch 2.13.0 is an untested pair" in capsys.readouterr().err


def test_options_that_have_no_effect_on_traces_are_named(place, compare, capsys):
    compare(*sides(place), code=0)
    words = ["--reference", place / "out" / "reference", "--suspect", place / "out" / "suspect", "--timeout", "5", "--out", place / "two"]
    assert main(["compare", *map(str, words), "--", "python", "x.py"]) == 0
    assert "nothing is run; ARGV, --timeout had no effect" in capsys.readouterr().err


def test_an_environment_that_a_peer_shares_with_us_is_refused(place, compare, monkeypatch):
    owner = {"name": "opguard", "version": "0.3", "folder": "/site"}
    monkeypatch.setattr("opguard_harness.compare.pipeline.foreign_owners", lambda: [owner])
    assert compare(*sides(place), code=2)["error"]["slug"] == "foreign-package"


def test_secrets_on_the_command_line_are_not_shown(place, python, capsys):
    words = [
        *map(str, sides(place)),
        "--python",
        str(python),
        "--out",
        str(place / "out"),
        "--",
        "python",
        "train.py",
        "--api-key",
        "hunter2",
    ]
    assert main(["compare", *words]) == 0
    captured = capsys.readouterr()
    assert "hunter2" not in captured.out + captured.err


@pytest.mark.parametrize("found", [answer("identical"), answer("diverged", pivot=pivot(step=2)), answer("inconclusive")])
def test_a_demo_that_finds_something_else_is_an_error(place, monkeypatch, capsys, found):
    monkeypatch.setattr("opguard_harness.workspace.demonstration.compare", lambda request, progress: found)
    assert main(["demo", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["slug"] == "demo-missed"
    assert not leftovers(place)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("side", ["reference", "suspect"])
def test_an_interrupt_ends_the_children_and_leaves_nothing(place, python, side, number):
    words = sides(place, **{side: {"hang": True}})
    command = [sys.executable, "-m", "opguard_harness", "compare", "--json", "--python", python, "--out", place / "new" / "out", *words]
    process = subprocess.Popen(
        list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=REPOSITORY, start_new_session=True
    )
    try:
        wait_for_hang(place / "new", side, process)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, err
    assert json.loads(out)["error"]["slug"] == "interrupted"
    assert "Traceback" not in err
    assert not (place / "new").exists()
    assert not leftovers(place)
    assert not [pid for pid in running() if str(place) in pid]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_while_the_traces_are_judged_leaves_nothing_either(place, python, monkeypatch, capsys, number):
    monkeypatch.setattr("opguard_harness.compare.judging.certify", lambda *runs, **options: os.kill(os.getpid(), number))
    words = [*map(str, sides(place)), "--python", str(python), "--out", str(place / "out")]
    assert main(["compare", "--json", *words]) == 130
    assert json.loads(capsys.readouterr().out)["error"]["slug"] == "interrupted"
    assert sorted(path.name for path in place.iterdir()) == ["a", "b", "bin", "cache"]
    assert not leftovers(place)


def wait_for_hang(parent: Path, side: str, process) -> None:
    """Wait until the side's program says that it hangs; the test's own timeout bounds this."""
    pattern = f".out.partial-*/{side}/stdout.txt"
    while process.poll() is None:
        if any("hanging" in path.read_text() for path in parent.glob(pattern)):
            return
    raise AssertionError(process.communicate())


def running():
    """Command lines of all processes (Linux)."""
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield entry.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:
            continue


def test_a_killed_harness_leaves_no_result_under_the_final_name(place, python):
    words = sides(place, suspect={"hang": True})
    command = [sys.executable, "-m", "opguard_harness", "compare", "--json", "--python", python, "--out", place / "out", *words]
    process = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=REPOSITORY)
    try:
        wait_for_hang(place, "suspect", process)
    finally:
        process.kill()
        process.wait()
    assert not (place / "out").exists()
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        text = entry.read_bytes() if entry.exists() else b""
        if str(place).encode() in text:
            os.kill(int(entry.parent.name), signal.SIGKILL)
