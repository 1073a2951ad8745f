"""One program at a time on a GPU and in a folder; who is dead and has left nothing running holds nothing."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from opguard_harness.config import state_dir
from opguard_harness.jobs import devices
from opguard_harness.jobs.devices import Gpu, gpus_of, parsed
from opguard_harness.jobs.leases import Resource, give_back, resources_of, take
from opguard_harness.jobs.owner import Owner
from tests.support.job_folders import DEAD, make

FIRST, SECOND = "run-000000000001", "run-000000000002"
GPU, FOLDER = Resource("GPU", "GPU-aaaa"), Resource("folder", "/programs/a")
TWO = (Gpu("0", "GPU-aaaa", "H200"), Gpu("1", "GPU-bbbb", "H200"))


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for job in (FIRST, SECOND):
        make(job).write_supervisor(Owner.ours())
    devices.present_gpus.cache_clear()


def test_what_is_held_is_refused_and_the_holder_is_named():
    assert take(FIRST, [GPU, FOLDER]) is None
    held = take(SECOND, [FOLDER])
    assert held.job == FIRST
    assert held.text == f"the folder that its program runs in, held by {FIRST}"
    assert take(SECOND, [GPU]).text == f"a GPU, held by {FIRST}"


def test_all_or_nothing_is_taken():
    assert take(FIRST, [FOLDER]) is None
    assert take(SECOND, [GPU, FOLDER]) is not None
    assert take(FIRST, [GPU]) is None  # the refused one took nothing


def test_a_job_may_take_what_it_holds():
    assert take(FIRST, [FOLDER]) is None
    assert take(FIRST, [FOLDER]) is None


def test_what_was_given_back_is_free():
    take(FIRST, [FOLDER])
    give_back(SECOND, [FOLDER])  # not its own
    assert take(SECOND, [FOLDER]) is not None
    give_back(FIRST, [FOLDER])
    assert take(SECOND, [FOLDER]) is None


@pytest.mark.parametrize("text", ["", "{", '{"job": 7}', '{"job": "../.."}', '{"job": "run-00000000000a"}'])
def test_a_lease_that_names_no_job_holds_nothing(text):
    take(FIRST, [FOLDER])
    (state_dir() / "leases" / FOLDER.file).write_text(text)
    assert take(SECOND, [FOLDER]) is None


def test_a_lost_job_holds_what_its_program_still_uses():
    job = make("run-000000000003")
    job.write_supervisor(Owner.ours())
    take(job.id, [FOLDER])
    job.mark("OPGUARD_RUN=/a/trace/of/the/test/of/leases")
    env = {**os.environ, "OPGUARD_RUN": "/a/trace/of/the/test/of/leases"}
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env) as program:
        job.write_supervisor(DEAD)
        assert take(SECOND, [FOLDER]).job == job.id
        program.communicate(b"\n")
    assert take(SECOND, [FOLDER]) is None


def test_a_job_that_has_ended_holds_nothing():
    job = make("run-000000000003")
    job.write_supervisor(DEAD)
    take(job.id, [FOLDER])
    assert take(SECOND, [FOLDER]) is None


def test_one_folder_has_one_lease_whatever_it_is_called(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").symlink_to(tmp_path / "a")
    env = {"CUDA_VISIBLE_DEVICES": ""}
    assert resources_of(tmp_path / "b", env) == resources_of(tmp_path / "a", env) == (Resource("folder", os.path.realpath(tmp_path / "a")),)


def test_resources_do_not_share_a_lease():
    assert len({GPU.file, FOLDER.file, Resource("GPU", FOLDER.name).file}) == 3
    take(FIRST, [GPU])
    assert json.loads((state_dir() / "leases" / GPU.file).read_text())["name"] == "GPU-aaaa"


def test_gpus_as_the_driver_lists_them():
    assert parsed("0, GPU-aaaa, H200\n1, GPU-bbbb, H200\n") == TWO
    assert parsed("NVIDIA-SMI has failed because it couldn't communicate\n, ,\n") == ()


@pytest.mark.parametrize(
    ("variables", "names"),
    [
        ({}, ("GPU-aaaa", "GPU-bbbb")),
        ({"CUDA_VISIBLE_DEVICES": ""}, ()),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, ()),
        ({"CUDA_VISIBLE_DEVICES": "1"}, ("GPU-bbbb",)),
        ({"CUDA_VISIBLE_DEVICES": "1, 0"}, ("GPU-bbbb", "GPU-aaaa")),
        ({"CUDA_VISIBLE_DEVICES": "1,-1,0"}, ("GPU-bbbb",)),
        ({"CUDA_VISIBLE_DEVICES": "GPU-b"}, ("GPU-bbbb",)),
        ({"CUDA_VISIBLE_DEVICES": "MIG-cccc"}, ("MIG-cccc",)),
        ({"CUDA_VISIBLE_DEVICES": "7"}, ()),
    ],
)
def test_a_program_is_taken_to_use_what_it_may_see(monkeypatch, variables, names):
    monkeypatch.setattr(devices, "present_gpus", lambda: TWO)
    assert gpus_of(variables) == names


def test_numbers_among_different_gpus_mean_any_of_them_unless_their_order_is_fixed(monkeypatch):
    monkeypatch.setattr(devices, "present_gpus", lambda: (TWO[0], replace(TWO[1], name="T4")))
    assert gpus_of({"CUDA_VISIBLE_DEVICES": "1"}) == ("GPU-aaaa", "GPU-bbbb")
    assert gpus_of({"CUDA_VISIBLE_DEVICES": "GPU-b"}) == ("GPU-bbbb",)
    assert gpus_of({"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}) == ("GPU-bbbb",)


@pytest.mark.parametrize(("script", "found"), [("echo '0, GPU-aaaa, H200'", 1), ("echo broken; exit 9", 0), ("exit 0", 0)])
def test_the_drivers_own_tool_is_asked(tmp_path, monkeypatch, script, found):
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert len([gpu for gpu in devices.present_gpus() if gpu.uuid == "GPU-aaaa"]) == found
