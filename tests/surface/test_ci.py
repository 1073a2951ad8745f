"""`.ci/run`, with every tool it starts replaced by one that only writes down how it was called."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
TOOLS = ("pip", "python", "pytest", "ruff", "mypy", "lint-imports")
# "$@" is -m venv FOLDER: a virtual environment of stand-ins.
PYTHON3 = """#!/bin/sh
mkdir -p "$3/bin"
for tool in {tools}; do cp "{tool}" "$3/bin/$tool"; done
"""
TOOL = """#!/bin/sh
echo "$(basename "$0") $*" >> "{calls}"
case "$*" in
  *"-m not full") echo "===== 7 passed, 2 deselected in 1.50s =====" ;;
  *"-m full") echo "===== 1 failed, 3 passed in 75.25s (0:01:15) ====="; exit {code} ;;
esac
"""


@pytest.fixture
def ci(tmp_path):
    """Run the script with stand-ins; the full tier ends with ``code``."""

    def run(code):
        tool, calls = tmp_path / "tool", tmp_path / "calls.txt"
        (tmp_path / "bin").mkdir()
        for path, text in (
            (tool, TOOL.format(calls=calls, code=code)),
            (tmp_path / "bin/python3", PYTHON3.format(tools=" ".join(TOOLS), tool=tool)),
        ):
            path.write_text(text)
            path.chmod(0o755)
        environment = {**os.environ, "PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}", "TMPDIR": str(tmp_path)}
        done = subprocess.run(
            [shutil.which("bash"), REPOSITORY / ".ci" / "run"], capture_output=True, text=True, env=environment, check=False
        )
        return done, calls.read_text().splitlines()

    return run


@pytest.mark.parametrize("code", [0, 1])
def test_everything_is_checked_and_both_tiers_are_summed_up_at_the_end(ci, code):
    done, calls = ci(code)
    assert done.returncode == code, done.stderr
    lint = ["ruff check .", "ruff format --check .", "mypy ", "lint-imports "]
    everywhere = "pytest -n auto --dist worksteal"  # all cores
    fast, full = f"{everywhere} -m not full", f"{everywhere} --durations=40 -m full"
    assert calls[1:] == [fast, *lint, "python -m tests.mcp.conformance", full]
    fast, full = done.stdout.splitlines()[-2:]
    assert fast == "fast tier: ===== 7 passed, 2 deselected in 1.50s ====="
    assert full == "full tier: ===== 1 failed, 3 passed in 75.25s (0:01:15) ====="
