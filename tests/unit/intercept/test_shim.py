"""The shim before fake libraries: what it counts, where, with which names; and that every call goes on as it was."""

import ctypes
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from opguard_core.intercept import shim

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="preloading works on Linux")
FAKES = Path(__file__).parents[2] / "support" / "fake_launches"
PRELUDE = """
import ctypes, json, os, threading
from opguard_core.intercept import shim
from opguard_core.intercept.shim import attached
here = attached()
driver = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_LOCAL)
linked = ctypes.CDLL("liblinked.so", mode=os.RTLD_LOCAL)
driver.fake_driver_stream.restype = ctypes.c_uint64
P = ctypes.c_void_p
def launch(function, handle, stream, pointer=0x7000_0000_0000):
    value, number = ctypes.c_uint64(pointer), ctypes.c_int(3)
    args = (P * 2)(ctypes.addressof(value), ctypes.addressof(number))
    return function(P(handle), 1, 1, 1, 1, 1, 1, 0, P(stream), args, None)
def shown():
    return [[one.boundary, one.kind, one.name, one.stream, one.num_bytes, list(one.addresses)] for one in here.take()]
"""


def run(libraries, text, *, preload=True):
    folder, path = libraries
    environment = {**os.environ, "LD_LIBRARY_PATH": str(folder), "PYTHONPATH": str(FAKES.parents[2])}
    if preload:
        environment = shim.preloaded(environment, path)
    command = [sys.executable, "-c", PRELUDE + textwrap.dedent(text)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_nothing_is_recorded_before_a_capture_asks(libraries):
    found = run(libraries, "launch(driver.cuLaunchKernel, 5, 9); print(json.dumps([shown(), driver.fake_driver_calls(0)]))")
    assert found == [[], 1]


def test_a_launch_through_a_linked_runtime_counts_once_and_arrives_unchanged(libraries):
    found = run(
        libraries,
        """
        here.enable(True)
        assert linked.linked_launch(P(11), P(0x7f00_0000_1000), P(42)) == 0
        print(json.dumps([shown(), driver.fake_driver_calls(0), driver.fake_driver_stream()]))
        """,
    )
    assert found == [[[None, "kernel", "kernel_11", 42, 0, [0x7F00_0000_1000]]], 1, 42]


def test_every_way_to_the_driver_is_seen(libraries):
    found = run(
        libraries,
        """
        here.enable(True)
        launch(driver.cuLaunchKernel, 1, 1)
        launch(driver.cuLaunchKernel_ptsz, 2, 2)
        address = driver.cuGetProcAddress_v2
        def get(name, flags=0, version=12000, by=address):
            found = P()
            rest = () if by is old else (None,)
            assert by(name, ctypes.byref(found), version, ctypes.c_uint64(flags), *rest) == 0
            return found.value
        old = driver.cuGetProcAddress
        number = ctypes.CFUNCTYPE(ctypes.c_int, P, *[ctypes.c_uint] * 7, P, P, P)
        for flags, by, handle in ((0, address, 3), (2, address, 4), (0, old, 5)):
            launch(number(get(b"cuLaunchKernel", flags, by=by)), handle, handle)
        again = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, P, ctypes.c_int, ctypes.c_uint64, P)(get(b"cuGetProcAddress"))
        found = P(); again(b"cuLaunchKernel", ctypes.byref(found), 12000, 0, None)
        launch(number(found.value), 6, 6)
        class Config(ctypes.Structure):
            _fields_ = [("shape", ctypes.c_uint * 6), ("shared", ctypes.c_uint), ("stream", P), ("a", P), ("n", ctypes.c_uint)]
        config = Config(stream=7)
        driver.cuLaunchKernelEx(ctypes.byref(config), P(7), None, None)
        driver.cuGraphLaunch(P(8), P(8))
        driver.cuMemcpyDtoDAsync_v2(ctypes.c_uint64(1 << 40), ctypes.c_uint64(1 << 41), ctypes.c_size_t(96), P(9))
        driver.cuMemsetD32Async(ctypes.c_uint64(1 << 40), 0, ctypes.c_size_t(10), P(10))
        linked.linked_copy(P(1 << 42), P(5), ctypes.c_size_t(12), P(11))
        print(json.dumps([[row[1:5] for row in shown()], [driver.fake_driver_calls(n) for n in range(6)], here.counts().escaped]))
        """,
    )
    kernels = [["kernel", f"kernel_{n:02}", n, 0] for n in range(1, 8)]
    rest = [["graph", "", 8, 0], ["copy", "", 9, 96], ["fill", "", 10, 40], ["copy", "", 11, 12]]
    assert found == [kernels + rest, [4, 2, 1, 1, 1, 1], 0]


GRAPHS = """
def capture(stream, *, flags=0, mode=0):
    linked.linked_end.restype = P
    assert linked.linked_begin(P(stream), mode) == 0
    here.set_boundary(30); launch(driver.cuLaunchKernel, 5, stream); launch(driver.cuLaunchKernel, 5, stream)
    driver.fake_driver_join(P(stream + 1))
    here.set_boundary(31); launch(driver.cuLaunchKernel, 6, stream + 1)
    here.set_boundary(2**64 - 1); launch(driver.cuLaunchKernel, 7, stream)
    linked.linked_copy(P(1 << 42), P(1 << 43), ctypes.c_size_t(12), P(stream))
    launch(driver.cuLaunchKernel, 8, 99)     # on another stream: runs at once
    return linked.linked_end(P(stream), ctypes.c_ulonglong(flags))
def replay(ready, stream=3):
    return linked.linked_replay(P(ready), P(stream))
"""


def test_a_replay_is_the_kernels_that_were_captured_and_belongs_to_who_captured_them(libraries):
    captured, replayed, within, calls = run(
        libraries,
        f"""{GRAPHS}
here.enable(1)
ready = capture(40)
first = shown()
here.set_boundary(50); here.set_boundary(2**64 - 1)      # the newest event by then
assert replay(ready) == 0
replayed = [[one.boundary, one.after, *row[1:4]] for one, row in [(one, [0, one.kind, one.name, one.stream]) for one in here.take()]]
here.set_boundary(60); replay(ready)
print(json.dumps([first, replayed, [row[:2] for row in shown()], driver.fake_driver_calls(3)]))
""",
    )
    assert captured == [[None, "kernel", "kernel_08", 99, 0, [0x7000_0000_0000]]]
    assert sorted(replayed, key=str) == [
        [30, 50, "graph", "kernel_05", 3],
        [30, 50, "graph", "kernel_05", 3],
        [31, 50, "graph", "kernel_06", 3],
        [None, 50, "copy", "", 3],
        [None, 50, "graph", "kernel_07", 3],
    ]
    assert sorted(within) == [[60, "copy"], *[[60, "graph"]] * 4]
    assert calls == 2


def test_graphs_that_were_captured_unseen_or_are_gone_have_no_kernels_and_nothing_else_is_mistaken_for_them(libraries):
    found = run(
        libraries,
        f"""{GRAPHS}
before = capture(40)                                      # nothing is recorded yet
here.enable(1)
rows = []
replay(before); rows.append([row[1:3] for row in shown()])
here.enable(2)                                            # outside the recorded steps: only what graphs are made of
ready = capture(50, flags=8)
launch(driver.cuLaunchKernel, 9, 1); replay(ready)
rows.append(shown())
here.enable(1)
replay(ready); rows.append(len(here.take()))
linked.linked_drop(P(ready))
replay(ready); rows.append([row[1:3] for row in shown()])
assert linked.linked_begin(P(60), 99) == 1                # refused: nothing is captured
launch(driver.cuLaunchKernel, 9, 60); rows.append([row[1:3] for row in shown()])
print(json.dumps([rows, here.graphs.replays, here.graphs.unknown]))
""",
    )
    assert found == [[[["graph", ""]], [], 5, [["graph", ""]], [["kernel", "kernel_09"]]], 3, 2]


def test_another_version_of_a_function_goes_out_as_it_is_and_is_counted(libraries):
    found = run(
        libraries,
        """
        here.enable(True)
        launch(driver.cuLaunchKernel, 1, 1)
        found = P(); driver.cuGetProcAddress_v2(b"cuLaunchKernel", ctypes.byref(found), 99000, ctypes.c_uint64(0), None)
        launch(ctypes.CFUNCTYPE(ctypes.c_int, P, *[ctypes.c_uint] * 7, P, P, P)(found.value), 2, 2)
        print(json.dumps([len(shown()), driver.fake_driver_calls(6), here.counts()[2:]]))
        """,
    )
    assert found == [1, 1, [1, ["cuLaunchKernel"]]]


def test_each_version_of_a_function_is_told_by_its_own_symbol(libraries):
    """A runtime asks for every version that it may be told to use, the oldest first."""
    found = run(
        libraries,
        """
        here.enable(True)
        def get(name, version):
            found = P(); assert driver.cuGetProcAddress_v2(name, ctypes.byref(found), version, ctypes.c_uint64(0), None) == 0
            return found.value
        begin = [get(b"cuStreamBeginCapture", version) for version in (10000, 12030)]
        ready = [get(b"cuGraphInstantiate", version) for version in (10000, 12000)]
        ctypes.CFUNCTYPE(ctypes.c_int, P)(begin[0])(P(50))
        launch(driver.cuLaunchKernel, 1, 50)
        graph, executable = P(), P()
        driver.cuStreamEndCapture(P(50), ctypes.byref(graph))
        ctypes.CFUNCTYPE(ctypes.c_int, P, P, P, P, ctypes.c_size_t)(ready[0])(ctypes.byref(executable), graph, None, None, 0)
        driver.cuGraphLaunch(executable, P(50))
        counts = here.counts()
        print(json.dumps([[row[1:3] for row in shown()], len({*begin, *ready}), counts.escaped, counts.gone_past]))
        """,
    )
    assert found == [[["graph", "kernel_01"]], 4, 0, []]


def test_boundaries_belong_to_their_threads_and_nest(libraries):
    found = run(
        libraries,
        """
        here.enable(True)
        before = here.set_boundary(17)
        inner = here.set_boundary(18)
        launch(driver.cuLaunchKernel, 1, 1)
        here.set_boundary(inner)
        launch(driver.cuLaunchKernel, 2, 1)
        def other():
            launch(driver.cuLaunchKernel, 3, 1)
            here.set_boundary(99)
            launch(driver.cuLaunchKernel, 4, 1)
        thread = threading.Thread(target=other); thread.start(); thread.join()
        here.set_boundary(before)
        launch(driver.cuLaunchKernel, 5, 1, pointer=12)
        print(json.dumps([[row[0], row[2], len(row[5])] for row in shown()]))
        """,
    )
    assert found == [[18, "kernel_01", 0], [17, "kernel_02", 0], [None, "kernel_03", 1], [99, "kernel_04", 0], [None, "kernel_05", 0]]


def test_kernels_of_ours_and_muted_threads_are_left_out(libraries):
    found = run(
        libraries,
        """
        here.enable(True)
        assert here.own(5)
        launch(driver.cuLaunchKernel, 5, 1)
        here._library.opguard_shim_mute(1); launch(driver.cuLaunchKernel, 6, 1); here._library.opguard_shim_mute(0)
        launch(driver.cuLaunchKernel, 7, 1)
        print(json.dumps([[row[2] for row in shown()], driver.fake_driver_calls(0)]))
        """,
    )
    assert found == [["kernel_07"], 3]


def test_many_threads_lose_and_mix_up_nothing(libraries):
    found = run(
        libraries,
        """
        from collections import Counter
        here.enable(True)
        taken = []
        def work(number):
            here.set_boundary(number)
            for _ in range(3000):
                launch(driver.cuLaunchKernel, number, number)
        threads = [threading.Thread(target=work, args=(n,)) for n in range(1, 7)]
        for thread in threads: thread.start()
        while any(thread.is_alive() for thread in threads): taken += here.take()
        taken += here.take()
        counts = Counter((one.boundary, one.name, one.stream) for one in taken)
        print(json.dumps([sorted(counts.items()), here.counts().lost]))
        """,
    )
    assert found == [[[[n, f"kernel_{n:02}", n], 3000] for n in range(1, 7)], 0]


def test_a_full_ring_counts_what_it_loses(libraries):
    found = run(
        libraries,
        """
        here.enable(True)
        for _ in range(40000): launch(driver.cuLaunchKernel, 1, 1)
        counts = here.counts()
        print(json.dumps([len(here.take()), counts.recorded, counts.lost, driver.fake_driver_calls(0)]))
        """,
    )
    assert found == [32768, 32768, 40000 - 32768, 40000]


def test_a_forked_child_records_nothing(libraries):
    found = run(
        libraries,
        """
        here.enable(True)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            launch(driver.cuLaunchKernel, 1, 1)
            os.write(writing, str(here.counts().recorded).encode()); os._exit(0)
        os.waitpid(child, 0)
        launch(driver.cuLaunchKernel, 2, 1)
        print(json.dumps([os.read(reading, 9).decode(), [row[2] for row in shown()]]))
        """,
    )
    assert found == ["0", ["kernel_02"]]


def test_who_asks_for_the_next_function_finds_the_one_after_himself(libraries):
    found = run(libraries, "linked.linked_cos.restype = ctypes.c_double; print(json.dumps(linked.linked_cos(ctypes.c_double(0.0))))")
    assert found == 1.0


def test_without_a_preload_the_reason_is_said(libraries):
    found = run(libraries, "print(json.dumps([type(here).__name__, here.reason]))", preload=False)
    assert found == ["NotAttached", "the process was not started with it"]


def test_a_shim_of_another_version_is_refused(monkeypatch):
    class Other:
        class opguard_shim_record_bytes:
            restype = None

            def __new__(cls):
                return 8

        def opguard_shim_version(self):
            return 99

    monkeypatch.setattr(ctypes, "CDLL", lambda name: Other())
    answer = shim.attached()
    assert isinstance(answer, shim.NotAttached)
    assert "another version" in answer.reason


@pytest.mark.parametrize(
    ("value", "left"), [("/x/shim.so", ""), ("/x/shim.so:/a.so", "/a.so"), ("/a.so /x/shim.so:/b.so", "/a.so:/b.so"), ("/a.so", "/a.so")]
)
def test_only_our_part_of_a_preload_is_taken_off(value, left):
    assert shim.without_shim(value, "/x/shim.so") == left


def test_a_preload_of_the_users_stays_behind_ours():
    assert shim.preloaded({"LD_PRELOAD": "/a.so", "HOME": "/h"}, Path("/x/shim.so")) == {"LD_PRELOAD": "/x/shim.so:/a.so", "HOME": "/h"}
    assert shim.preloaded({}, Path("/x/shim.so")) == {"LD_PRELOAD": "/x/shim.so"}
