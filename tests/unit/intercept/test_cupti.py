"""Our own subscriber before a fake libcupti: what it counts and to whom it belongs, whom it refuses, and that it lets go in time."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from opguard_core import builds
from opguard_core.intercept import cupti, shim

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="CUPTI is used on Linux")
ROOT = Path(__file__).parents[3]
PRELUDE = """
import ctypes, json, os
from opguard_core.intercept import cupti
from opguard_core.intercept.shim import attached
fake = ctypes.CDLL(os.environ["FAKE_CUPTI"], mode=os.RTLD_LOCAL) if os.environ["FAKE_CUPTI"] else None
subscriber = cupti.obtain({"OPGUARD_CUPTI": "1"})
U = ctypes.c_uint64
names = [ctypes.create_string_buffer(text) for text in (b"first", b"second", b"og_ours")]
def kernel(which, correlation, start, end, graph=0):
    fake.fake_cupti_kernel(names[which], ctypes.c_uint32(correlation), U(start), U(end), ctypes.c_uint32(graph))
"""


@pytest.fixture(scope="module")
def fake(tmp_path_factory):
    path = tmp_path_factory.mktemp("cupti") / "libcupti.so.13"
    source = ROOT / "tests" / "support" / "fake_cupti.c"
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-Wall", str(source), "-o", str(path), f"-Wl,-soname,{path.name}"], check=True)
    return path


@pytest.fixture
def run(libraries, fake):
    def run(text, *, preload=True, loaded=True, **environment):
        env = {**os.environ, "PYTHONPATH": str(ROOT), "FAKE_CUPTI": str(fake) if loaded else "", **environment}
        if preload:
            env = shim.preloaded(env, libraries[1])
        command = [sys.executable, "-c", PRELUDE + textwrap.dedent(text)]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, cwd=ROOT)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def test_kernels_are_counted_with_their_times_graphs_and_boundaries(run):
    report, times, calls = run(
        """
        here = attached()
        assert subscriber.begin()
        calls = fake.fake_cupti_state(1)
        here.set_boundary(17)
        fake.fake_cupti_call(2, 505, 7)          # the runtime's launch
        here.set_boundary(2**64 - 1)
        fake.fake_cupti_call(1, 514, 8)          # a graph, by the driver, in nobody's name
        kernel(0, 7, 100, 150)
        kernel(0, 8, 200, 210, graph=3)
        kernel(1, 8, 210, 240, graph=3)
        kernel(1, 9, 0, 0)                       # no times; launched before we looked
        kernel(2, 7, 1, 2)                       # the fingerprint's
        subscriber.end()
        print(json.dumps([subscriber.report(), subscriber.times(), calls]))
        """
    )
    assert report == {
        "active": True, "kernels": 4, "attributed": 1, "device_ns": 90, "attributed_ns": 50, "in_graphs": 2,
        "graph_kernels": {"first": 1, "second": 1}, "dropped": 0, "unplaced": 1, "unnamed": 0,
    }  # fmt: skip
    assert times == {"first": {"count": 2, "mean_ns": 30.0}, "second": {"count": 1, "mean_ns": 30.0}}
    assert calls == 18


def test_records_of_many_buffers_are_all_counted(run):
    found = run(
        """
        subscriber.begin()
        for at in range(6000): kernel(at % 2, at, 10, 11)
        subscriber.end()
        print(json.dumps([subscriber.report()["kernels"], fake.fake_cupti_state(0), fake.fake_cupti_state(2)]))
        """,
        preload=False,
    )
    assert found == [6000, 0, 0]


@pytest.mark.parametrize(
    ("before", "reason"),
    [
        ("fake.cuptiSubscribe(ctypes.byref(ctypes.c_void_p()), None, None)", "another client holds CUPTI"),
        ("fake.fake_cupti_version(28)", "CUPTI has version 28; the records of 130000 and 130001 (CUDA 13.0) are known"),
        ("fake.fake_cupti_fail(1)", "cuptiSubscribe failed with error 35"),
        ("fake.fake_cupti_fail(3)", "and then refused with error 7"),
        ("os.environ['KINETO_USE_DAEMON'] = '1'", "KINETO_USE_DAEMON"),
    ],
)
def test_who_cannot_have_it_says_why_and_leaves_it_free(run, before, reason):
    report, times, holders = run(
        f"""
        {before}
        began = subscriber.begin()
        subscriber.end()
        assert not began
        print(json.dumps([subscriber.report(), subscriber.times(), fake.fake_cupti_state(0)]))
        """,
        preload=False,
    )
    assert report["active"] is False
    assert reason in report["reason"]
    assert (times, holders) == ({}, int("another client" in reason))


def test_a_torch_without_libcupti_is_refused_and_none_is_loaded(run):
    told = run("assert not subscriber.begin(); print(json.dumps(subscriber.reason))", preload=False, loaded=False)
    assert told == "no libcupti is loaded in this process: this torch is built without it"


@pytest.mark.full
def test_a_profiler_that_starts_later_finds_cupti_free(run):
    if pytest.importorskip("torch").version.cuda is not None:
        pytest.skip("this torch brings a libcupti, whose place the fake one would take")
    report, seen, holders, restored = run(
        """
        import torch
        from torch.autograd import profiler
        before = profiler._prepare_profiler
        queued = len(torch.cuda._queued_calls)
        subscriber.begin_with_the_card()
        assert fake.fake_cupti_state(0) == 0 and len(torch.cuda._queued_calls) == queued + 1   # not before the card is used
        torch.cuda._queued_calls.pop()[0]()
        assert fake.fake_cupti_state(0) == 1
        kernel(0, 1, 100, 150)
        seen = []
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            seen.append(fake.fake_cupti_state(0))
            torch.ones(2) + 1
        kernel(0, 2, 100, 150)                    # nobody's any more
        subscriber.end()
        restored = profiler._prepare_profiler is before
        print(json.dumps([subscriber.report(), seen + [len(profile.events()) > 0], fake.fake_cupti_state(0), restored]))
        """,
        preload=False,
    )
    assert (report["kernels"], report["reason"]) == (1, cupti.PROFILER)
    assert (seen, holders, restored) == ([0, True], 0, True)


def test_nobody_gets_it_unasked():
    assert cupti.obtain({}) is None
    assert isinstance(cupti.recipe_if_wanted({}), builds.NotBuilt)
