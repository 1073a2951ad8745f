"""The script that runs all that is to be measured on a card: order, limits, rows that stay when a part is cut, processes that end."""

import subprocess
import sys
import time

import pytest

from tests.gpu import all as everything

SLOW = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("begun", child.pid, flush=True)
with open(sys.argv[-1], "a") as rows:
    rows.write("| a row | at once |\\n")
time.sleep(600)
"""


@pytest.fixture
def parts(monkeypatch, tmp_path):
    (tmp_path / "slow_part.py").write_text(SLOW)
    (tmp_path / "quick_part.py").write_text("print('done')")
    monkeypatch.setattr(everything, "REPOSITORY", tmp_path)
    monkeypatch.setattr(everything.importlib.util, "find_spec", lambda name: None if name == "missing_part" else object())
    made = [
        everything.Part("missing", "missing_part", (), 9.0, (), ""),
        everything.Part("slow", "slow_part", (), 1.5, (), ""),
        everything.Part("quick", "quick_part", ("--option",), 20.0, ("--dry",), "", own_limit="--seconds"),
        everything.Part("pair", "quick_part", (), 9.0, (), "", cards=2),
    ]
    monkeypatch.setattr(everything, "PARTS", tuple(made))
    monkeypatch.setattr(everything, "LEAST_S", 0.0)
    monkeypatch.setattr(everything, "END_S", 1.0)
    return made


def test_a_part_that_is_cut_keeps_its_rows_and_leaves_no_process(parts, tmp_path):
    out = tmp_path / "rows.md"
    assert everything.main(["--seconds", "60", "--out", str(out), "--log", str(tmp_path / "log")]) == 1
    text = out.read_text()
    assert "| a row | at once |" in text
    assert "| slow |" in text and "cut after 2 s" in text
    assert "| quick |" in text and "held | done |" in text
    assert "missing" not in text
    assert "it needs 2 cards" in text
    child = int((tmp_path / "log" / "slow.txt").read_text().split()[1])
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and _runs(child):
        time.sleep(0.05)
    assert not _runs(child)


def _runs(pid):
    found = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout.strip()
    return bool(found) and not found.startswith("Z")


def test_when_the_time_is_over_the_rest_is_told_and_not_begun(parts, tmp_path, monkeypatch):
    monkeypatch.setattr(everything, "LEAST_S", 30.0)
    out = tmp_path / "rows.md"
    assert everything.main(["--seconds", "1", "--out", str(out), "--only", "quick"]) == 0
    assert "not run: no time was left" in out.read_text()


def test_a_part_is_told_its_limit_and_where_rows_go(parts, tmp_path):
    options = everything.argparse.Namespace(dry_run=False, out=tmp_path / "rows.md")
    words = everything.command(parts[2], 40.0, options)
    assert words == [sys.executable, "-m", "quick_part", "--option", "--seconds", "39", "--out", str(tmp_path / "rows.md")]
    options.dry_run = True
    assert "--dry" in everything.command(parts[2], 40.0, options)


def test_a_part_that_is_not_known_is_refused(parts):
    with pytest.raises(SystemExit, match="no part nothing"):
        everything.main(["--only", "nothing"])


def test_every_part_is_there():
    options = everything.argparse.Namespace(only=[], skip=[])
    assert [part.name for part in everything.chosen(options)] == [part.name for part in everything.PARTS]
    files = [word for part in everything.PARTS for word in part.words if word.startswith("tests/")]
    assert all((everything.REPOSITORY / file).is_file() for file in files)
