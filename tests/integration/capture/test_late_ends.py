# ruff: noqa: E402  (torch may be missing)
"""However a process ends, and however late its device is, no digest is lost while the device works."""

import json
import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.timeout(900)]  # building the engine

from opguard_core.engines import native_build
from opguard_core.trace.reader import Run
from tests.integration.capture.test_harmless import ENV
from tests.support.capturing import ROOT
from tests.support.native import native_or_skip

PROGRAM = """
import os, random, signal, sys, threading
from pathlib import Path
import numpy, torch
from opguard_core.capture.session import start
from opguard_core.launch.ending import Ending
from opguard_core.plan.config import RunConfig
from opguard_core.probe import backends
from tests.support.fake_cuda.on_host import OnHost
from tests.support.late_native import asking_python

random.seed(0), numpy.random.seed(0)
folder, mode, way, engine = Path(sys.argv[1]), *sys.argv[2:]
backends.any_expected = lambda: True  # as in a torch for CUDA
python = asking_python()  # to the end of the process
if engine == "native" and way != "at-once":
    python.__enter__()
session = start(RunConfig(run_dir=folder, user_root=Path.cwd(), mode=mode, engine=engine))
Ending(session, ended=lambda reason, problem: None, forked=lambda: None).watch()
device = None
if way != "at-once":  # a device is met after the capture has begun
    device = OnHost(folder, os.environ)
    device.install()
torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.AdamW(model.parameters())
for step in range(3):
    if step == 2 and device is not None:
        device.hold()
    model(torch.randn(3, 4)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()
print("trained", flush=True)
if way == "raises":
    raise ValueError("the program's own")
if way == "os._exit":
    os._exit(0)
if way == "terminated":
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(60)
if way == "resets-its-device":
    device.reset_device()
"""
ENDS = {"returns": 0, "raises": 1, "os._exit": 0, "terminated": -15}


def run(folder, way, mode, engine):
    """Its manifest, and the rows of its events."""
    folder.mkdir(mode=0o700)
    program = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(PROGRAM), str(folder), mode, way, engine]
    done = subprocess.run(program, cwd=ROOT, env={**ENV, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == ENDS.get(way, 0), done.stderr
    assert "trained" in done.stdout, done.stderr
    rank = Run.open(folder).ranks[0]
    rows = []
    for window in rank.iter_windows():
        for index in range(len(window)):
            event = window.event(index)
            if event.kind != "marker":
                rows.append((event.operator, event.args, [(s.slot, s.status, s.mix64, s.value64) for s in window.slots_of(index)]))
    return json.loads((folder / "rank-00000" / "manifest.json").read_bytes()), rows


ASKED = [("sentinel", "dispatch"), ("verify", "dispatch"), ("verify", "native"), ("full", "native")]  # a sentinel looks at no operator


@pytest.fixture(scope="module")
def at_once(tmp_path_factory):
    if isinstance(native_build.load(), native_build.Missing):
        return {one: run(tmp_path_factory.mktemp("run") / "run", "at-once", *one)[1] for one in ASKED if one[1] != "native"}
    return {one: run(tmp_path_factory.mktemp("run") / "run", "at-once", *one)[1] for one in ASKED}


@pytest.mark.parametrize("way", ENDS)
@pytest.mark.parametrize("asked", ASKED, ids="-".join)
def test_nothing_is_lost_however_a_process_ends(tmp_path, at_once, asked, way):
    if asked[1] == "native":
        native_or_skip()
    manifest, rows = run(tmp_path / "run", way, *asked)
    (engine,) = manifest["engines"].values()
    told = engine["fingerprint"]["cpu"]
    assert (told["tickets"], told["lost"], told["outstanding"], told["failed"]) == (told["delivered"], 0, 0, [])
    assert told["probes"] > 0 and not manifest["coverage"]["gaps"]
    if way == "os._exit":  # the state at the end of the run is found from globals that all ways but this one still have
        rows = rows[: len(at_once[asked])]
    assert rows == at_once[asked]


def test_only_a_device_that_failed_loses_digests_and_its_sums_are_unreadable(tmp_path, at_once):
    asked = "sentinel", "dispatch"
    manifest, rows = run(tmp_path / "run", "resets-its-device", *asked)
    (engine,) = manifest["engines"].values()
    told = engine["fingerprint"]["cpu"]
    assert told["lost"] > 0 and told["failed"][0].startswith("device 0 failed: ")
    assert manifest["coverage"]["gaps"]["digests-lost"]["touches_state"]
    for (_, _, mine), (_, _, theirs) in zip(rows, at_once[asked], strict=True):
        assert all(one == other or one[1:] == ("unreadable", 0, 0) for one, other in zip(mine, theirs, strict=True))


def test_under_the_native_engine_too_a_device_that_failed_loses_what_it_had_and_no_event(tmp_path, at_once):
    native_or_skip()
    asked = "verify", "native"
    manifest, rows = run(tmp_path / "run", "resets-its-device", *asked)
    (engine,) = manifest["engines"].values()
    assert engine["fingerprint"]["cpu"]["failed"][0].startswith("device 0 failed: ")
    assert manifest["coverage"]["gaps"]["digests-lost"]["touches_state"]
    assert [row[0] for row in rows] == [row[0] for row in at_once[asked]]
    for (_, _, mine), (_, _, theirs) in zip(rows, at_once[asked], strict=True):
        assert all(one == other or one[1:] == ("unreadable", 0, 0) for one, other in zip(mine, theirs, strict=True))
