"""Listing runs must answer at once: no array library, no Arrow, no torch, no server code is imported for it."""

import json
import os
import subprocess
import sys

import pytest

HEAVY = ("pyarrow", "numpy", "torch", "mcp", "cupy", "libcst", "transformers")
CODE = """
import io, json, sys
sys.stdout = io.StringIO()
{extra}
from opguard_harness.__main__ import main
code = main({words!r})
sys.__stdout__.write(json.dumps([code, sorted(name for name in {heavy!r} if name in sys.modules)]))
"""


def heavy_after(tmp_path, words, extra=""):
    code = CODE.format(words=words, heavy=HEAVY, extra=extra)
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    "words", [["call", "list_runs", "{}"], ["tools", "--json"], ["tools"], ["--help"], ["compare", "--help"], ["explain"]], ids=" ".join
)
def test_light_commands_import_nothing_heavy(tmp_path, words):
    assert heavy_after(tmp_path, words) == [0, []]


def test_the_check_can_fail(tmp_path):
    if not any(__import__("importlib.util").util.find_spec(name) for name in ("numpy",)):
        pytest.skip("numpy is not installed")
    assert heavy_after(tmp_path, ["tools"], extra="import numpy") == [0, ["numpy"]]


def test_the_harness_never_imports_torch(tmp_path):
    code = (
        "import importlib, pkgutil, sys, opguard_harness\n"
        "for item in pkgutil.walk_packages(opguard_harness.__path__, 'opguard_harness.'):\n"
        "    importlib.import_module(item.name)\n"
        "sys.stdout.write(str('torch' in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False"
