# ruff: noqa: E402  (torch may be missing)
"""A forked child is not observed: it takes no lock of ours, writes nothing, and ends as it would without us."""

import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from tests.support.capturing import ROOT

COMMON = """
import os, sys, threading
import torch
from tests.support.capturing import capturing

SHIMMED = [(torch.nn.Module, "__call__"), (torch.autograd.graph, "_engine_run_backward"), (threading.Thread, "_bootstrap_inner")]
before = [getattr(*place) for place in SHIMMED]

def train():
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    call = type(model).__call__
    for _ in range(3):
        call(model, torch.ones(1, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert model.weight.detach().numpy().shape == (2, 4)
    model.weight.tolist()

def locks(context):
    return [holder._lock for holder in (context.outbox, context.coverage, context.storages, context.places, context.lanes)]

class Held(threading.Thread):
    '''Holds every lock of the capture, as a thread in the middle of an operator may.'''
    def __init__(self, context):
        super().__init__(daemon=True)
        self.context, self.held, self.done = context, threading.Event(), threading.Event()
    def run(self):
        for lock in locks(self.context):
            lock.acquire()
        self.held.set()
        self.done.wait()
        for lock in locks(self.context):
            lock.release()
"""

IN_CHILD = """
with capturing() as seen:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    old_call = torch.nn.Module.__call__
    model(torch.ones(1, 4))
    thread = Held(seen.session.context)
    thread.start()
    thread.held.wait()
    written = len(seen.sink.events)
    child = os.fork()
    if not child:
        train()
        old_call(model, torch.ones(1, 4)).sum().backward()
        worker = threading.Thread(target=train)
        worker.start()
        worker.join()
        assert len(seen.sink.events) == written == seen.session.context.outbox.next_seq
        assert [getattr(*place) for place in SHIMMED] == before
        seen.session.stop("exit")
        sys.stdout.write("child done\\n")
        sys.stdout.flush()
        os._exit(7)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7, status
    thread.done.set()
    thread.join()
    model(torch.ones(1, 4))
assert "addmm" in seen.events[-1].operator, seen.events[-1]
"""

DATA_WORKER = """
class Samples(torch.utils.data.Dataset):
    def __init__(self):
        self.model = torch.nn.Linear(4, 2)
    def __len__(self):
        return 4
    def __getitem__(self, index):
        x = torch.full((4,), float(index)).requires_grad_()
        self.model(x).sum().backward()
        assert next(iter(torch.utils.data.DataLoader([1, 2])))
        return x.grad

with capturing() as seen:
    stop = threading.Event()
    def busy():
        x = torch.ones(8)
        while not stop.is_set():
            x = x * 1.0
    thread = threading.Thread(target=busy)
    thread.start()
    loader = torch.utils.data.DataLoader(Samples(), num_workers=2, multiprocessing_context="fork")
    rows = [batch for batch in loader]
    stop.set()
    thread.join()
assert len(rows) == 4
assert not [event for event in seen.events if "addmm" in event.operator]
assert not seen.coverage["gaps"], seen.coverage
"""

INSIDE = """
library = torch.library.Library("opguard_fork", "FRAGMENT")
library.define("forks(Tensor x) -> Tensor")
seen = None
def forks(x):
    global child
    child = os.fork()
    return x.clone()
library.impl("forks", forks, "CPU")
with capturing() as seen:
    written = None
    y = torch.ones(2) * 2
    written = len(seen.sink.events)
    z = torch.ops.opguard_fork.forks(y)
    if not child:
        train()
        assert len(seen.sink.events) == written
        os._exit(9)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 9, status
assert "forks" in seen.events[-1].operator
"""


@pytest.mark.parametrize("program", [IN_CHILD, DATA_WORKER, INSIDE], ids=["fork", "data-worker", "inside-an-operator"])
def test_a_forked_child_goes_its_own_way(program):
    done = subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", "-c", textwrap.dedent(COMMON + program)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
