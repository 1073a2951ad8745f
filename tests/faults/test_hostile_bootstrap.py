"""The bootstrap in a hostile environment: it acts for nobody but its launcher, and what lies in the run folder is data."""

import json
import os
import subprocess
import sys

import pytest

from opguard_core.errors import PlanError
from opguard_core.launch import folder as run_folders
from opguard_core.launch.startup import FOLDER, bootstrap
from opguard_core.plan.orders import Orders, read_orders


@pytest.fixture
def orders(tmp_path):
    return Orders(argv=["python", "train.py"], user_root=str(tmp_path))


@pytest.fixture
def run(tmp_path, orders):
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700)
    (folder / "processes").mkdir(mode=0o700)
    (folder / "plan.json").write_bytes(orders.to_json())
    return folder


def linked(run):
    run.rename(run.with_name("real"))
    run.symlink_to(run.with_name("real"))


def not_a_folder(run):
    run.rename(run.with_name("real"))
    run.write_text("")


def pipe(run):
    (run / "plan.json").unlink()
    os.mkfifo(run / "plan.json", 0o600)


def folder_for_a_plan(run):
    (run / "plan.json").unlink()
    (run / "plan.json").mkdir()


def oversized(run):
    os.truncate(run / "plan.json", bootstrap.PLAN_LIMIT_BYTES + 1)


def quoted_nonce(run):
    """The nonce as a text inside the plan, not as its own."""
    record = json.loads((run / "plan.json").read_bytes())
    record["argv"] = [f'"nonce":"{record["nonce"]}"']
    record["nonce"] = "0" * 64
    (run / "plan.json").write_text(json.dumps(record, separators=(",", ":")))


def open_to_the_group(run):
    run.chmod(0o770)


def open_to_others(run):
    run.chmod(0o701)


PLACES = [linked, not_a_folder, pipe, folder_for_a_plan, oversized, quoted_nonce, open_to_the_group, open_to_others]


@pytest.mark.parametrize("spoil", PLACES)
def test_a_folder_that_is_not_the_launcher_s_is_not_acted_on(tmp_path, run, orders, spoil):
    assert bootstrap.trusted_plan(str(run), orders.nonce)
    spoil(run)
    assert not bootstrap.trusted_plan(str(run), orders.nonce)


@pytest.mark.parametrize(
    "change",
    [lambda nonce: nonce[:-1], lambda nonce: nonce[:31], lambda nonce: nonce + "0", lambda nonce: "", lambda nonce: nonce.upper() + "x"],
)
def test_only_the_very_nonce_opens_it(run, orders, change):
    assert not bootstrap.trusted_plan(str(run), change(orders.nonce))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_not_acted_on(run, orders):
    os.chown(run, 65534, 65534)
    assert not bootstrap.trusted_plan(str(run), orders.nonce)


@pytest.mark.parametrize("spoil", [linked, quoted_nonce, open_to_the_group])
def test_a_process_with_a_spoilt_folder_is_as_if_we_were_not_there(tmp_path, run, orders, spoil):
    spoil(run)
    code = """
import os, sys
print(sorted(name for name in os.environ if name.startswith(("OPGUARD", "PYTHONPATH"))))
print("sitecustomize" in sys.modules, [getattr(finder, "__name__", type(finder).__name__) for finder in sys.meta_path])
"""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("OPGUARD", "PYTHON"))}
    bare = subprocess.run([sys.executable, "-c", code], env=clean, cwd=tmp_path, capture_output=True, text=True, check=True)
    armed = {**clean, "PYTHONPATH": str(FOLDER), "OPGUARD_RUN": str(run), "OPGUARD_NONCE": orders.nonce}
    ours = subprocess.run([sys.executable, "-c", code], env=armed, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert (ours.stdout, ours.stderr) == (bare.stdout, bare.stderr)
    assert list((run / "processes").iterdir()) == []


def test_orders_are_data_and_nothing_in_them_names_code(run, orders, tmp_path, monkeypatch):
    """A name of a module among them changes nothing that is read, and is imported by nobody."""
    (tmp_path / "evil.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    record = json.loads((run / "plan.json").read_bytes())
    for name in ("import", "module", "engines", "hook", "__class__", "__reduce__"):
        record[name] = "evil"
    (run / "plan.json").write_text(json.dumps(record))
    assert read_orders(run) == orders
    assert "evil" not in sys.modules


@pytest.mark.parametrize("text", ["[" * 100_000, '{"format":1,' + '"a":[' * 50_000, "\x00", "\xff\xfe", '{"format":1,"argv":5,"steps":5}'])
def test_a_plan_that_is_no_plan_is_one_error_of_ours(run, text):
    (run / "plan.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(PlanError):
        read_orders(run)


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('touch ran')",
        "(" * 100_000,
        "{'pid': " * 5_000,
        "[1, 2]",
        "{'pid': 1}",
        "{'pid': 'x', 't_ns': 1}",
        "1" * 2_000_000,
        "\x00",
    ],
)
def test_what_a_program_makes_up_about_its_processes_is_passed_over(run, text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (run / "processes" / "1-evil.txt").write_text(text)
    (run / "processes" / "2-link.txt").symlink_to("/dev/zero")
    (run / "processes" / "3-good.txt").write_text("{'pid': 3, 't_ns': 1}")
    assert [process.pid for process in run_folders.read_processes(run)] == [3]
    assert not (tmp_path / "ran").exists()


def test_a_record_is_not_written_through_a_link_or_over_a_file(run, monkeypatch):
    monkeypatch.setattr(bootstrap.os, "urandom", lambda size: b"\0" * size)
    name = f"{os.getpid()}-{'00' * 4}.txt"
    target = run / "target"
    (run / "processes" / name).symlink_to(target)
    assert not bootstrap.write_record(str(run), {"pid": 1})
    assert not target.exists()
