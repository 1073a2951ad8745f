# ruff: noqa: E402  (torch may be missing)
"""Digests that come later, and processes: two ranks, a fork while events wait, a kill while events wait."""

import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.timeout(900)]  # building the engine

from opguard_core.trace.reader import Run
from tests.integration.capture.test_harmless import ENV
from tests.support.capturing import ROOT
from tests.support.native import native_or_skip

RANKS = {"dispatch": ["late_ranks"], "native": ["late_native_ranks", "some"], "native, all by Python": ["late_native_ranks", "all"]}


@pytest.mark.parametrize("way", RANKS)
def test_two_ranks_see_what_they_exchanged(way, tmp_path):
    if way != "dispatch":
        native_or_skip()
    program, *asked = RANKS[way]
    command = [sys.executable, "-W", "ignore", "-m", f"tests.integration.capture.{program}", *asked]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path / "store")], cwd=ROOT, env=ENV, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for rank in range(2)
    ]
    try:
        outputs = [rank.communicate(timeout=200)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(outputs)
    assert outputs[0].count("ok ") == outputs[1].count("ok ") == 9


COMMON = """
import contextlib, os, random, signal, sys, threading
from pathlib import Path
import numpy
import torch
from opguard_core.capture.session import start
from opguard_core.plan.config import RunConfig
from opguard_core.trace import flush
from opguard_core.trace.index import read_index
from tests.support.late import LateBackend, answering_later
from tests.support.late_native import asking_python

random.seed(0)
numpy.random.seed(0)  # the state boundary digests these generators, too
flush.FLUSH_PAUSE_MIN_S = flush.FLUSH_PAUSE_SHARE = 0.0
folder, what, engine = Path(sys.argv[1]), *sys.argv[2:]
folder.mkdir(mode=0o700)

def committed():  # how many groups there are is a matter of timing, and nothing more comes from the device while we wait
    return any(group.of("events") for group in read_index(folder / "rank-00000" / "index.log").groups)

def train(steps, at):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(steps):
        model(torch.randn(3, 4)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == at and what == "kill":
            while not committed():
                threading.Event().wait(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
        if step == at and what == "fork":
            child = os.fork()
            if not child:
                model(torch.ones(1, 4)).sum().backward()
                session.stop("exit")
                os._exit(7)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7

with asking_python() if engine == "native" else contextlib.nullcontext(), answering_later(LateBackend(hold=30)):
    session = start(RunConfig(run_dir=folder, user_root=Path.cwd(), mode="full", engine=engine))
    train(12, 8)
    session.stop("exit")
    report = session.engines[engine]["fingerprint"]
    assert report["cpu"]["outstanding"] == 0 and report["cpu"]["probes"] > 100, report
"""


def record(folder, what, engine):
    program = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(COMMON), str(folder), what, engine]
    code = subprocess.run(program, cwd=ROOT, env=ENV, capture_output=True, text=True, timeout=200, check=False)
    assert code.returncode == (-9 if what == "kill" else 0), code.stderr
    rank = Run.open(folder).ranks[0]
    rows = []
    for window in rank.iter_windows():
        for index in range(len(window)):
            event = window.event(index)._replace(t_host_ns=0, t_device_ns=None, stack=None, user_frame=None, library_frame=None)
            rows.append((event, tuple(window.slots_of(index))))
    return rank, rows


@pytest.fixture(scope="module", params=["dispatch", "native"])
def whole(request, tmp_path_factory):
    """An engine, and the rows of a run to which nothing happens."""
    if request.param == "native":
        native_or_skip()
    return request.param, record(tmp_path_factory.mktemp("whole") / "trace", "nothing", request.param)[1]


def test_a_fork_while_events_wait_costs_neither_process_anything(tmp_path, whole):
    engine, expected = whole
    rank, rows = record(tmp_path / "forks", "fork", engine)
    assert rank.torn is None and not rank.manifest.coverage["gaps"]
    assert rows == expected


def test_a_kill_while_events_wait_leaves_a_prefix(tmp_path, whole):
    engine, expected = whole
    rank, rows = record(tmp_path / "killed", "kill", engine)
    assert rank.torn is not None
    assert 0 < len(rows) < len(expected) and rows == expected[: len(rows)]
