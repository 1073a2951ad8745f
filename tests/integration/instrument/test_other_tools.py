"""Other tools that look at code see the program's own: pytest's rewritten asserts, coverage, line counts of ``trace``."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SUITES = Path(__file__).parents[2] / "support" / "suites"
MODULE = """
def price(items, tax=lambda v: v * 2):
    total = 0
    for item in items:
        if not item:
            continue
        total += tax(
            abs(item),
        )
    return total


def unused():
    return price([])
"""
TEST = """
from og_shop import price


def test_price():
    assert price([1, 0, 2]) == 6
    bill = {}
    bill["sum"] = price([3])
    assert bill["sum"] == sum([price([1]), len("abc")]), "the bill"
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "og_shop.py").write_text(MODULE)
    (tmp_path / "test_og_shop.py").write_text(TEST)
    return tmp_path


def run(folder, words, *, rewritten, on_path=()):
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("OPGUARD", "PYTHON", "PYTEST", "COV"))}
    more = {"XDG_CACHE_HOME": str(folder / "cache"), "SUITE_OUTCOMES": str(folder / "outcomes.json"), "PYTHONDONTWRITEBYTECODE": "1"}
    more["PYTHONPATH"] = os.pathsep.join(map(str, [SUITES, *on_path]))
    if rewritten:
        more["SUITE_REWRITTEN"] = "1"
    pytest_words = ["-m", "pytest", "-q", "-p", "plugin", "-p", "no:cacheprovider", "-o", "addopts=", "test_og_shop.py"]
    return subprocess.run(
        [sys.executable, *words, *pytest_words], cwd=folder, env={**kept, **more}, capture_output=True, text=True, timeout=200, check=False
    )


@pytest.mark.full
@pytest.mark.timeout(300)
def test_pytest_explains_a_failed_assert_of_a_test_whose_module_is_rewritten(folder):
    plain, rewritten = run(folder, [], rewritten=False), run(folder, [], rewritten=True)
    modules = json.loads((folder / "outcomes.json").read_text())["modules"]
    assert modules["og_shop"] == "rewritten"
    assert "AssertionRewritingHook" in modules["test_og_shop"]
    assert plain.returncode == rewritten.returncode == 1
    assert "AssertionError: the bill" in plain.stdout
    assert "where 2 = price([1])" in plain.stdout or "sum([2, 3])" in plain.stdout or "assert 6 == 5" in plain.stdout
    without_time = [re.sub(r"in [\d.]+s", "", done.stdout) for done in (plain, rewritten)]
    assert without_time[0] == without_time[1]


@pytest.mark.full
@pytest.mark.timeout(300)
def test_coverage_finds_the_same_lines_and_branches(folder, tmp_path):
    target = tmp_path / "coverage"
    words = [sys.executable, "-m", "pip", "install", "-q", "--target", str(target), "coverage"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=200, check=False)
    if done.returncode:
        pytest.skip(f"coverage cannot be had here: {(done.stderr.strip().splitlines() or ['?'])[-1][:200]}")
    found = []
    for rewritten in (False, True):
        data = folder / f"data-{rewritten}"
        done = run(folder, ["-m", "coverage", "run", "--branch", f"--data-file={data}"], rewritten=rewritten, on_path=[target])
        assert "1 failed" in done.stdout, done.stdout + done.stderr
        words = [
            sys.executable,
            "-m",
            "coverage",
            "json",
            f"--data-file={data}",
            "-o",
            str(folder / "report.json"),
            "--include=*og_shop.py",
        ]
        environment = {**os.environ, "PYTHONPATH": str(target)}
        subprocess.run(words, cwd=folder, env=environment, check=True, capture_output=True)
        files = json.loads((folder / "report.json").read_text())["files"]
        kept = ("executed_lines", "missing_lines", "executed_branches", "missing_branches")
        found.append({name: {key: of[key] for key in kept} for name, of in files.items()})
    assert found[0] == found[1]
    assert found[0]["og_shop.py"]["missing_lines"] == [14]


def test_the_standard_librarys_trace_counts_the_same_lines(folder):
    counts = []
    for rewritten in (False, True):
        out = folder / f"counts-{rewritten}"
        words = ["-m", "trace", "--count", "--missing", "-C", str(out), "--module"]
        kept = {
            "XDG_CACHE_HOME": str(folder / "cache"),
            "SUITE_OUTCOMES": os.devnull,
            "PYTHONPATH": os.pathsep.join([str(SUITES), str(folder)]),
        }
        environment = {**os.environ, **kept, **({"SUITE_REWRITTEN": "1"} if rewritten else {})}
        (folder / "og_count.py").write_text("import plugin, og_shop\nassert og_shop.price([1, 0, 2]) == 6\n")
        done = subprocess.run(
            [sys.executable, *words, "og_count"], cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        counts.append((out / "og_shop.cover").read_text())
    assert counts[0] == counts[1]
    assert "    1:     total = 0" in counts[0]
