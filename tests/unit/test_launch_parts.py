"""The launcher's parts that need no program: command line, folder, plan, preflight, and what it says afterwards."""

import os
import sys
from pathlib import Path

import pytest

from opguard_core.errors import ConfigError, ConflictingOptions, DependencyMissing, LaunchFailed, NothingCaptured, PlanError, UnknownOption
from opguard_core.launch import folder, outcome, preflight
from opguard_core.launch.child import Exit
from opguard_core.launch.command import parse
from opguard_core.launch.startup import FOLDER, bootstrap
from opguard_core.plan.command import PACKAGE, RUN_VARIABLE, launch_argv
from opguard_core.plan.config import RunConfig, parse_steps
from opguard_core.plan.orders import Orders, read_orders


def test_the_command_line_reads_back_what_the_builder_wrote(tmp_path):
    words = launch_argv("/py", tmp_path, ["python", "train.py", "--", "-x"], mode="verify", steps=(3, 9), step_offset=4, deterministic=True)
    assert words[:3] == ["/py", str(PACKAGE), "run"]
    options = parse(words[2:])
    assert (options.out, options.argv) == (tmp_path, ["python", "train.py", "--", "-x"])
    assert (options.mode, options.steps, options.step_offset, options.deterministic) == ("verify", (3, 9), 4, True)


@pytest.mark.parametrize(
    "words",
    [
        ["run", "--out", "x"],
        ["run", "--out", "x", "--"],
        ["run", "--", "python"],
        ["run", "--out", "x", "--mode", "fast", "--", "python"],
        ["run", "--out", "x", "--steps", "3", "--", "python"],
        ["run", "--out", "x", "--steps", "3:3", "--", "python"],
        ["run", "--out", "x", "--step-offset", "-1", "--", "python"],
        ["run", "--out", "x", "--determ", "--", "python"],
        ["walk"],
    ],
)
def test_a_wrong_command_line_is_a_config_error(words):
    with pytest.raises(ConfigError) as error:
        parse(words)
    assert str(error.value).endswith("]")


def test_steps_are_half_open_and_zero_based():
    assert parse_steps("0:3") == (0, 3)
    for text in ("3", "3:", ":3", "5:3", "-1:3", "a:b", "1:99999999999999999999", f"0:{'9' * 5000}"):
        with pytest.raises(ConfigError, match="A:B"):
            parse_steps(text)


def test_a_run_config_refuses_what_cannot_be(tmp_path):
    assert RunConfig(run_dir=tmp_path, user_root=tmp_path, rank=1, world_size=2).rank_dir == tmp_path / "rank-00001"
    for wrong, kind in (({"mode": "x"}, UnknownOption), ({"rank": 2}, ConfigError), ({"steps": (2, 2)}, ConfigError)):
        with pytest.raises(kind):
            RunConfig(run_dir=tmp_path, user_root=tmp_path, **wrong)


def test_orders_come_back_and_the_plan_hash_covers_mode_and_steps_only(tmp_path):
    orders = Orders(argv=["p", "\udcff"], user_root="/x", mode="verify", steps=(1, 2), facts={"a": [1]})
    (tmp_path / "plan.json").write_bytes(orders.to_json())
    assert read_orders(tmp_path) == orders
    assert Orders(argv=["q"], user_root="/y", mode="verify", steps=(1, 2)).plan_hash == orders.plan_hash
    assert Orders(argv=["p"], user_root="/x", mode="full", steps=(1, 2)).plan_hash != orders.plan_hash
    assert Orders(argv=["p"], user_root="/x").nonce != orders.nonce


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format":2}', '{"format":1}'])
def test_a_damaged_plan_is_one_clear_error(tmp_path, text):
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(PlanError, match=r"plan\.json"):
        read_orders(tmp_path)


def test_the_run_folder_is_private_and_must_be_empty(tmp_path):
    made = folder.prepare(tmp_path / "a" / "b")
    assert made.stat().st_mode & 0o777 == 0o700
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o755)
    assert folder.prepare(shared).stat().st_mode & 0o777 == 0o700
    (shared / "file").touch()
    (tmp_path / "link").symlink_to(made)
    for wrong in (shared, shared / "file", tmp_path / "link"):
        with pytest.raises(ConfigError, match="--out"):
            folder.prepare(wrong)


def test_every_process_of_the_program_can_be_told_by_one_variable(tmp_path):
    given = folder.environment(tmp_path, Orders(["python", "t.py"], "/x"), {}, FOLDER)
    assert given[RUN_VARIABLE] == str(tmp_path)


def test_the_environment_keeps_a_pythonpath_behind_ours(tmp_path):
    orders = Orders(argv=["p"], user_root="/x")
    for before, after in ({}, str(FOLDER)), ({"PYTHONPATH": ""}, str(FOLDER)), ({"PYTHONPATH": ":/a"}, f"{FOLDER}::/a"):
        env = folder.environment(tmp_path, orders, {**before, "OTHER": "1"}, FOLDER)
        assert (env["PYTHONPATH"], env["OTHER"]) == (after, "1")


def test_records_of_one_process_add_up_and_broken_ones_are_skipped(tmp_path):
    (tmp_path / "processes").mkdir()
    bootstrap.write_record(str(tmp_path), {"pid": 7, "state": "started", "argv0": "\udcff'"})
    bootstrap.write_record(str(tmp_path), {"pid": 7, "state": "capturing"})
    bootstrap.write_record(str(tmp_path), {"pid": 8, "state": "started"})
    (tmp_path / "processes" / "9-x.txt").write_text("{'pid': 9, 'sta")
    first, second = folder.read_processes(tmp_path)
    assert (first.pid, first.get("state"), first.get("argv0"), second.pid) == (7, "capturing", "\udcff'", 8)


def test_ranks_that_the_program_started_take_their_folders(tmp_path):
    for name in ("rank-00000", "spawned-00000", "spawned-00001"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "from").write_text(name)
    assert folder.settle_spawned(tmp_path)
    assert not folder.settle_spawned(tmp_path)
    assert folder.captured_ranks(tmp_path) == [0, 1]
    assert (tmp_path / "rank-00000" / "from").read_text() == "spawned-00000"
    assert (tmp_path / "parent-of-ranks" / "from").read_text() == "rank-00000"


def _executable(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def test_the_interpreter_behind_a_command_is_found(tmp_path):
    words = preflight.interpreter_words
    assert words("/x/python3.11", ["py", "-I", "t.py"]) == ["/x/python3.11", "-I", "t.py"]
    plain = _executable(tmp_path / "torchrun", "#!/x/bin/python3 -sE\nimport re\n")
    assert words(plain, ["torchrun", "a"]) == ["/x/bin/python3", "-sE", plain, "a"]
    long = _executable(tmp_path / "long", "#!/bin/sh\n'''exec' \"/x y/bin/python\" \"$0\" \"$@\"\n' '''\n")
    assert words(long, ["long"]) == ["/x y/bin/python", long]
    found = _executable(tmp_path / "env", "#!/usr/bin/env python3\n")
    assert Path(words(found, ["env"])[0]).name == "python3"
    for other in ("#!/bin/bash\n", "\x7fELF", "#!\n", "#!/bin/sh\necho\n", ""):
        assert words(_executable(tmp_path / "other", other), ["other"]) is None


@pytest.mark.parametrize("flag", ["-I", "-E", "-S", "-uS"])
def test_an_interpreter_that_ignores_the_environment_is_refused(flag):
    with pytest.raises(NothingCaptured, match=rf"started with -{flag[-1]} \("):
        preflight.check([sys.executable, flag, "train.py"], {"PATH": os.defpath})


def test_other_obstacles_before_the_start():
    with pytest.raises(LaunchFailed, match="no program 'no-such-program'"):
        preflight.check(["no-such-program"], {"PATH": os.defpath})
    with pytest.raises(ConflictingOptions, match="already inside"):
        preflight.check([sys.executable], {"OPGUARD_RUN": "/run"})


def test_a_missing_package_is_named_with_the_line_that_installs_it(monkeypatch):
    monkeypatch.setattr(preflight.importlib.util, "find_spec", lambda name: None if name in ("pyarrow", "orjson") else object())
    with pytest.raises(DependencyMissing) as error:
        preflight.check([sys.executable, "train.py"], {"PATH": os.defpath})
    assert f"Run: {sys.executable} -m pip install 'pyarrow>=16' 'orjson>=3.10'" in str(error.value)
    with pytest.raises(DependencyMissing, match="launcher"):
        preflight.check_launcher()


def test_an_untested_torch_is_a_warning(monkeypatch):
    monkeypatch.setattr(preflight.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(preflight.importlib.metadata, "version", lambda name: "1.9.0")
    assert "torch 1.9.0 is an untested pair" in preflight.check([sys.executable, "train.py"], {"PATH": os.defpath})


def _process(pid, **facts):
    return folder.Process(pid, {"pid": pid, "argv0": f"{pid}.py", "python": "3.11.7", **facts})


ENDED = Exit(code=0, signal=None, told=None)


def test_why_nothing_was_captured():
    say = outcome.nothing_captured
    assert "No Python process of 'bash'" in str(say([], ["/bin/bash"], ENDED))
    assert "never imported torch; it ended with exit code 0" in str(say([_process(1, role="program")], ["p"], ENDED))
    assert "started no rank" in str(say([_process(1, role="agent", reason="agent")], ["p"], ENDED))
    child = _process(2, role="left", reason="subprocess")
    assert "1 other Python processes" in str(say([_process(1, role="program"), child], ["p"], Exit(None, 11, None)))


def test_every_process_is_either_a_rank_or_left_alone_with_a_reason():
    processes = [
        _process(1, role="agent", reason="agent", state="started"),
        _process(2, role="rank", reason="declared", state="ended", folder="rank-00000", world_size=2),
        _process(3, role="rank", reason="declared", state="started"),
        _process(4, role="rank", reason="declared", state="failed", slug="dependency-missing"),
        _process(5, role="left", reason="dataloader-worker", state="left"),
        _process(6, role="spawned", reason="multiprocessing-child", state="started"),
    ]
    rows = outcome.left_alone(processes, spawned=False)
    assert [(row["pid"], row["reason"]) for row in rows] == [
        (1, "agent"),
        (3, "no-torch"),
        (4, "dependency-missing"),
        (5, "dataloader-worker"),
        (6, "multiprocessing-child"),
    ]
    assert [gap["slug"] for gap in outcome.gaps(processes, [0], spawned=False)] == ["ranks-missing"]
    assert all(row["text"] for row in rows if row["reason"] != "dependency-missing")


def test_the_parent_of_spawned_ranks_is_left_alone_and_does_not_count():
    parent = _process(1, role="program", reason="single", state="ended", folder="rank-00000", world_size=1)
    ranks = [_process(2 + rank, role="spawned", state="ended", folder=f"spawned-0000{rank}", world_size=2) for rank in range(2)]
    assert [row["reason"] for row in outcome.left_alone([parent, *ranks], spawned=True)] == ["parent-of-ranks"]
    assert outcome.gaps([parent, *ranks], [0, 1], spawned=True) == []


@pytest.mark.parametrize(
    ("facts", "slug"),
    [
        ({"role": "left", "reason": "uncaptured-rank", "rank": 1}, "uncaptured-rank"),
        ({"role": "left", "reason": "rank-captured-before", "rank": 1, "other_pid": 3}, "rank-restarted"),
        ({"role": "left", "reason": "second-program"}, "second-program"),
        ({"role": "program", "folder": "rank-00000", "world_size": 1, "joined_world_size": 2}, "late-rank"),
        ({"role": "program", "folder": "rank-00000", "world_size": 1, "state": "capturing"}, "still-running"),
        ({"role": "program", "folder": "rank-00000", "world_size": 1, "problem": "OSError: disk"}, "stop-failed"),
    ],
)
def test_training_that_was_not_captured_is_a_gap_with_a_fix(facts, slug):
    (gap,) = outcome.gaps([_process(os.getpid(), **facts)], [0], spawned=False)
    assert gap["slug"] == slug
    assert gap["text"].endswith(".")
    assert gap["fix"]


def test_a_failed_start_keeps_its_slug_and_fix():
    failed = _process(4, role="rank", state="failed", slug="dependency-missing", text="It lacks x.", fix="Run y.", traceback="")
    error = outcome.failure([_process(1, role="agent"), failed])
    assert str(error) == "Capture did not start (process 4, 4.py): It lacks x. Run y. [dependency-missing]"
    assert outcome.failure([_process(1, role="agent")]) is None


def test_an_exit_is_what_a_shell_would_say():
    assert [Exit(3, None, None).status, Exit(None, 15, 15).status] == [3, 143]
