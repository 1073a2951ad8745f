"""Claims: in a capture, device work belongs to the operator that was running on its thread, with either engine, also when it raises or
comes from autograd's thread; outside recorded steps nothing is recorded; a launched program has the shim, its children have not."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from opguard_core.intercept import shim
from opguard_core.trace.reader import Run

pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="preloading works on Linux")
ROOT = Path(__file__).parents[3]
PROGRAM = """
import ctypes, os, subprocess, sys, threading
import torch
from opguard_core.capture import session
P = ctypes.c_void_p
driver = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_LOCAL)
def launch(handle, times=1):
    value, number = ctypes.c_uint64(0x7000_0000_0000), ctypes.c_int(3)
    args = (P * 2)(ctypes.addressof(value), ctypes.addressof(number))
    for _ in range(times):
        driver.cuLaunchKernel(P(handle), 1, 1, 1, 1, 1, 1, 0, P(0), args, None)
@torch.library.custom_op("fake::work", mutates_args=())
def work(x: torch.Tensor, handle: int) -> torch.Tensor:
    launch(handle, 3)
    if handle == 13:
        raise ValueError("no such handle")
    return x + 1
@torch.library.custom_op("fake::back", mutates_args=())
def back(x: torch.Tensor) -> torch.Tensor:
    launch(21)
    return x * 1
def called(name, x, handle, inner=False):
    outside = session._active[0].outside
    call = outside.before(f"extension.fake.{name}", [("in.0", x)], "", sys._getframe(0))
    launch(handle, 2)
    if inner:
        work(x, 50)
    launch(handle + 1)
    if name != "explained":
        ctypes.memset(x.untyped_storage().data_ptr(), handle, 4)
    outside.after(call)
work.register_autograd(lambda ctx, grad: (back(grad), None), setup_context=lambda ctx, inputs, output: None)
"""
STEPS = """
weight = torch.nn.Parameter(torch.ones(3))
optimizer = torch.optim.SGD([weight], lr=0.1)
for step in range(3):
    optimizer.zero_grad()
    launch(40 + step)
    work(weight, 30 + step).sum().backward()
    optimizer.step()
"""


@pytest.fixture
def launched(libraries, tmp_path):
    """Run a program under observation; its trace, its run manifest, what it printed."""
    folder, _ = libraries

    def launched(text, *options, program=PROGRAM, **environment):
        (tmp_path / "train.py").write_text(program + textwrap.dedent(text))
        env = {**os.environ, "LD_LIBRARY_PATH": str(folder), "PYTHONPATH": str(ROOT), "OPGUARD_SHIM": "1", **environment}
        command = [sys.executable, "-m", "opguard_core", "run", "--out", "out", *options, "--", sys.executable, "train.py"]
        done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        run = Run.open(tmp_path / "out")
        return run.ranks[0], run.manifest, done.stdout

    return launched


def by_operator(trace):
    """Operator of the event, or None with the operator it came after; kernel; count."""
    names = {window.event(at).seq: window.event(at).operator for window in trace.iter_windows() for at in range(len(window))}
    return sorted(
        (names[row.seq] if row.seq is not None else "", "" if row.after is None else names[row.after], row.kernel, row.count)
        for row in trace.launches
    )


@pytest.mark.timeout(900)  # the observer is built by the first of all tests that need it
@pytest.mark.parametrize("engine", ["dispatch", "native"])
def test_work_belongs_to_the_operator_that_ran(launched, engine):
    trace, _, _ = launched(
        """
        launch(1)
        x = torch.ones(3, requires_grad=True)
        y = work(x, 5)
        launch(2, 2)
        try:
            work(x, 13)
        except ValueError:
            launch(3)
        y.sum().backward()
        thread = threading.Thread(target=work, args=(x, 6)); thread.start(); thread.join()
        # Calls that the dispatcher does not see: one that writes, one that does so around an operator, one that its operator explains.
        called("plain", torch.ones(3), 51)
        called("composite", torch.ones(3), 53, inner=True)
        called("explained", torch.ones(3), 55, inner=True)
        launch(57)
        """,
        "--engine",
        engine,
    )
    assert by_operator(trace) == [
        ("", "", "kernel_01", 1),
        ("", "fake.work.default", "kernel_02", 2),
        ("", "fake.work.default", "kernel_03", 1),
        ("", "fake.work.default", "kernel_55", 2),
        ("", "fake.work.default", "kernel_56", 1),
        ("", "fake.work.default", "kernel_57", 1),
        ("extension.fake.composite", "", "kernel_53", 2),
        ("extension.fake.composite", "", "kernel_54", 1),
        ("extension.fake.plain", "", "kernel_51", 2),
        ("extension.fake.plain", "", "kernel_52", 1),
        ("fake.back.default", "", "kernel_21", 1),
        ("fake.work.default", "", "kernel_05", 3),
        ("fake.work.default", "", "kernel_06", 3),
        ("fake.work.default", "", "kernel_13", 3),
        ("fake.work.default", "", "kernel_50", 3),
        ("fake.work.default", "", "kernel_50", 3),
    ]
    report = trace.manifest.engines["launches"]
    assert report["active"]
    assert (report["recorded"], report["unattributed"], report["lost"], report["escaped"]) == (30, 8, 0, 0)
    assert trace.manifest.engines["outside"] == {"active": True, "events": 2, "composite": 1}
    # Torch has no memory on this device. Of what a call without an event launched the addresses were not kept.
    assert {row.kernel for row in trace.launches if row.touches} == {"kernel_55", "kernel_56"}


def test_only_recorded_steps_are_recorded(launched):
    trace, _, _ = launched(STEPS, "--steps", "1:2", "--engine", "dispatch")
    assert {row.kernel for row in trace.launches} == {"kernel_31", "kernel_41", "kernel_21"}


def test_children_and_the_program_see_no_preload(launched):
    _, manifest, printed = launched(
        """
        print([os.environ.get("LD_PRELOAD"), subprocess.run(["env"], capture_output=True, text=True).stdout.count("launch_shim")])
        torch.ones(1) + 1
        """,
        "--engine",
        "dispatch",
    )
    assert "[None, 0]" in printed
    assert manifest.extra["shim"] == {"preloaded": True, "reason": ""}


def test_switched_off_nothing_is_recorded_and_the_run_says_so(launched):
    trace, manifest, _ = launched("work(torch.ones(1), 5)", "--engine", "dispatch", OPGUARD_SHIM="0")
    assert manifest.extra["shim"] == {"preloaded": False, "reason": "OPGUARD_SHIM=0 switched it off"}
    assert len(trace.launches) == 0


def test_mode_sentinel_has_no_operator_to_give_work_to(launched):
    trace, _, _ = launched(STEPS, "--mode", "sentinel")
    assert trace.manifest.engines["launches"] == {"active": False, "reason": "mode sentinel looks at no operator"}


def test_a_session_without_the_shim_and_without_a_card_says_nothing(tmp_path):
    if os.path.exists("/dev/nvidiactl"):
        pytest.skip("there is a card, so the reason is said")
    text = f"""
    import json, torch
    from pathlib import Path
    from opguard_core.capture.session import start
    from opguard_core.plan.config import RunConfig
    session = start(RunConfig(run_dir=Path({str(tmp_path)!r}), user_root=Path("."), plan_hash="0" * 64, engine="dispatch"))
    torch.ones(1) + 1
    session.stop("exit")
    print(json.dumps(list(session.engines)))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(text)], capture_output=True, text=True, check=True, cwd=ROOT)
    assert json.loads(done.stdout) == ["dispatch"]
    assert shim.PRELOAD == "LD_PRELOAD"
