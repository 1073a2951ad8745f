"""Claims: a program is started with the shim where there is a driver or somebody asks for it, else the reason is said."""

from __future__ import annotations

import json
import multiprocessing.util  # noqa: F401  whose function is exchanged
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from opguard_core import builds
from opguard_core.intercept import shim, wanted
from opguard_core.launch import spawned
from opguard_core.launch.startup import bootstrap

ROOT = Path(__file__).parents[3]
SHIM = "/cache/launch_shim-1.so"


@pytest.fixture
def no_driver(monkeypatch):
    monkeypatch.setattr(wanted, "_DRIVER_PLACES", ())
    monkeypatch.setattr(wanted, "_FOLDERS", ())


def built(path=SHIM):
    return {wanted.NAME: builds.Built(path=Path(path), compiler="cc", flags=(), opened=None)}


@pytest.mark.parametrize(("switch", "reason"), [("0", "OPGUARD_SHIM=0 switched it off"), ("", "no NVIDIA driver here")])
def test_without_a_need_the_reason_is_said(no_driver, switch, reason):
    recipe = wanted.recipe_if_wanted({"OPGUARD_SHIM": switch})
    assert wanted.preloaded({"A": "b"}, recipe, {}) == ({"A": "b"}, wanted.NotPreloaded(reason))


def test_it_can_be_asked_for(no_driver):
    assert wanted.recipe_if_wanted({"OPGUARD_SHIM": "1"}) == shim.recipe()


def test_a_driver_is_looked_for_and_not_loaded(no_driver, tmp_path):
    assert not wanted.driver_here({"LD_LIBRARY_PATH": str(tmp_path)})
    (tmp_path / "libcuda.so.1").write_text("no library")
    assert wanted.driver_here({"LD_LIBRARY_PATH": f"/nowhere:{tmp_path}"})


def test_the_program_gets_it_in_front_of_its_own_preloads(no_driver):
    recipe = wanted.recipe_if_wanted({"OPGUARD_SHIM": "1"})
    environment, why = wanted.preloaded({"LD_PRELOAD": "/a.so"}, recipe, built())
    assert why is None
    assert environment == {"LD_PRELOAD": f"{SHIM}:/a.so", "OPGUARD_SHIM_PATH": SHIM}


def test_a_failed_build_is_the_reason(no_driver):
    recipe = wanted.recipe_if_wanted({"OPGUARD_SHIM": "1"})
    assert wanted.preloaded({}, recipe, {wanted.NAME: builds.NotBuilt("no compiler")}) == ({}, wanted.NotPreloaded("no compiler"))


def test_a_path_that_a_preload_cannot_name_is_refused(no_driver):
    recipe = wanted.recipe_if_wanted({"OPGUARD_SHIM": "1"})
    environment, why = wanted.preloaded({}, recipe, built("/my cache/shim.so"))
    assert environment == {}
    assert why is not None
    assert "space or colon" in why.reason


@pytest.mark.parametrize(
    ("preload", "left"),
    [(SHIM, None), (f"{SHIM}:/a.so", "/a.so"), (f"/a.so {SHIM}", "/a.so"), ("/a.so:/b.so", "/a.so:/b.so"), (None, None)],
)
def test_the_bootstrap_takes_only_our_part_off(preload, left):
    environment = {"OPGUARD_SHIM_PATH": SHIM, **({} if preload is None else {"LD_PRELOAD": preload})}
    ours = preload is not None and SHIM in preload
    assert bootstrap.without_shim(environment) == (SHIM if ours else "")
    assert environment == ({} if left is None else {"LD_PRELOAD": left})


def test_processes_that_multiprocessing_starts_anew_begin_with_the_shim_and_nothing_else_does(libraries, tmp_path):
    _, path = libraries
    (tmp_path / "child.py").write_text(
        "import ctypes, os\n"
        "def told(queue):\n"
        "    has_shim = hasattr(ctypes.CDLL(None), 'opguard_shim_version')\n"
        "    queue.put([has_shim, os.environ.get('LD_PRELOAD'), os.environ['OPGUARD_SHIM_PATH']])\n"
    )
    program = f"""
import json, multiprocessing, os, subprocess, sys
import multiprocessing.util
sys.path[:0] = [{str(tmp_path)!r}, {str(ROOT)!r}]
from opguard_core.launch import spawned
import child
os.environ["LD_PRELOAD"] = "libdl.so.2"
assert spawned.preload_children({str(path)!r}) == ""
spawn = multiprocessing.get_context("spawn")
found = spawn.Queue()
one = spawn.Process(target=child.told, args=(found,))
one.start()
elsewhere = subprocess.run(["env"], capture_output=True, text=True).stdout.count("launch_shim")
print(json.dumps([found.get(), os.environ["LD_PRELOAD"], elsewhere]))
one.join()
"""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("OPGUARD", "LD_"))}
    text = f"if __name__ == '__main__':\n{textwrap.indent(program, '    ')}"
    (tmp_path / "program.py").write_text(text)
    done = subprocess.run([sys.executable, "program.py"], capture_output=True, text=True, check=True, cwd=tmp_path, env=environment)
    inside, after, elsewhere = json.loads(done.stdout)
    assert inside == [True, f"{path}:libdl.so.2", str(path)]
    assert (after, elsewhere) == ("libdl.so.2", 0)


def test_a_multiprocessing_that_starts_processes_otherwise_is_told(monkeypatch):
    monkeypatch.setattr(sys.modules["multiprocessing.util"], "spawnv_passfds", None)
    assert "not known" in spawned.preload_children("/shim.so")
