# ruff: noqa: E402  (torch may be missing)
"""What a sentinel writes is what a walk over all state, tensor by tensor and with every digest in Python, would write."""

import contextlib

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch import nn

from opguard_core.engines import sentinel
from opguard_core.engines.deferred import words_of
from opguard_core.fingerprint.constants import MASK64, finish, mix_lane
from opguard_core.fingerprint.digest import Digests
from opguard_core.ids import Direction, Status
from opguard_core.probe import sums
from opguard_core.probe.kinds import Unreadable
from opguard_core.probe.promise import settle
from opguard_core.probe.tensor import fingerprint
from opguard_core.trace.schema import SlotRow
from tests.support.capturing import capturing
from tests.support.late import LateBackend, answering_later
from tests.support.late_training import PROGRAMS


def state_of(names):
    names.adopt_noted()
    for _, parameter in names.parameters():
        yield "param", parameter
        if parameter.is_leaf and parameter.grad is not None:
            yield "grad", parameter.grad
    for optimizer in names.optimizers():
        for _, value in names.optimizer_state(optimizer):
            if isinstance(value, torch.Tensor):
                yield "optim", value
            elif isinstance(value, bool | int | float):
                yield "optim", torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else torch.int64)
    for buffer in {id(buffer): buffer for _, buffer in names.buffers()}.values():
        yield "buffer", buffer


def walked(names, seq):
    """(rows, why tensors could not be read): plainly, as the definition of a sentinel's slots says."""
    totals, unreadable = {}, []
    for kind, tensor in state_of(names):
        if tensor.is_meta:
            continue
        known = fingerprint(tensor)
        if isinstance(known, Unreadable):
            unreadable.append(known.reason)
            continue
        totals.setdefault(kind, []).append((tensor.numel(), str(tensor.dtype).removeprefix("torch."), settle(known)))
    rows = []
    for kind, parts in totals.items():
        dtypes = {dtype for _, dtype, _ in parts}
        nbytes, xor32 = sum(digests.nbytes for *_, digests in parts), 0
        for *_, digests in parts:
            xor32 ^= digests.xor32
        mixed = [finish(sum(mix_lane(digests[at]) for *_, digests in parts) & MASK64, len(parts)) for at in range(3)]
        dtype = dtypes.pop() if len(dtypes) == 1 else "mixed"
        shape = f"{len(parts)},{sum(numel for numel, *_ in parts)}"
        words = words_of(Digests(*mixed, xor32, False, nbytes))
        place = (None, 0, nbytes, None, nbytes)
        rows.append(SlotRow(seq, kind, Direction.IN.value, Status.PROBED.value, dtype, shape, "", "", *place, *words, ""))
    return rows, unreadable


@pytest.fixture
def expected(monkeypatch):
    """By event, the rows that a walk has found at the same moment."""
    found = {}
    original = sentinel.SentinelState._fill

    def fill(self, rows, seq):
        found[seq] = walked(self._names, seq)
        original(self, rows, seq)

    monkeypatch.setattr(sentinel.SentinelState, "_fill", fill)
    return found


class Numbers(torch.optim.Optimizer):
    """Plain numbers as state; a part of it appears late."""

    def __init__(self, parameters):
        super().__init__(list(parameters), {})

    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    state = self.state[parameter]
                    state["step"] = state.get("step", 0) + 1
                    state["loss"], state["late"], state["name"], state[3] = 0.5 / state["step"], state["step"] > 1, "text", 1.0
                    if state["step"] == 2:
                        state["momentum"] = torch.ones(3)
                    parameter.data = parameter.data - 0.1 * parameter.grad


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.register_buffer("seen", torch.zeros(3))
        self.register_buffer("again", self.seen)

    def forward(self, x):
        self.seen += 1
        return self.second(self.first(x))


OPTIMIZERS = {
    "adamw": lambda ps: torch.optim.AdamW(ps, foreach=True),
    "capturable": lambda ps: torch.optim.AdamW(ps, foreach=False, fused=True),
    "sgd": lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9),
    "numbers": Numbers,
}


def wild(seed, optimizer):
    """A training to which something happens between its steps."""
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    model = nn.Sequential(Tied(), nn.BatchNorm1d(4), nn.Linear(4, 2))
    updates = OPTIMIZERS[optimizer](model.parameters())
    head = None
    for _ in range(8):
        x = model(torch.randn(5, 4))
        (x if head is None else head(x)).square().mean().backward()
        what = int(rng.integers(9))
        if what == 0:
            model[2].bias.data = torch.randn(2)
        elif what == 1:
            model[2].weight.data = torch.randn(4, 2).t()
        elif what == 2:
            model[1].running_mean = torch.randn(4)
        elif what == 3:
            model[0].first.bias.grad = None
        elif what == 4 and head is None:
            head = nn.Linear(2, 1)
            updates.add_param_group({"params": list(head.parameters())})
        elif what == 5:
            model[2].weight.requires_grad_(False)
        elif what == 6:
            model[2].weight.requires_grad_(True)
        elif what == 7:
            nn.Embedding(3, 2, sparse=True, device="meta")
        updates.step()
        updates.zero_grad(set_to_none=rng.random() < 0.7)


@pytest.mark.parametrize("late", [False, True], ids=["at once", "late"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_sentinel_writes_what_a_walk_finds(expected, optimizer, late):
    for seed in range(4):
        expected.clear()
        with answering_later(LateBackend(30)) if late else contextlib.nullcontext(), capturing("sentinel", engine="dispatch") as seen:
            wild(seed, optimizer)
        assert len(expected) >= 8
        assert_written(seen, expected)


@pytest.mark.parametrize("name", PROGRAMS)
def test_so_it_does_for_sparse_and_averaged_state(expected, name):
    with capturing("sentinel") as seen:
        PROGRAMS[name]()
    assert_written(seen, expected)


def assert_written(seen, expected):
    unreadable = 0
    for seq, (rows, problems) in expected.items():
        assert [row for row in seen.sink.slots[seq] if not row.slot.startswith("rng:")] == rows
        unreadable += len(problems)
    assert seen.coverage["gaps"].get("unreadable-tensor", {"count": 0})["count"] == unreadable
    assert not set(seen.coverage["gaps"]) - {"unreadable-tensor"}


def test_an_unreadable_tensor_is_a_gap_and_left_out(expected):
    with capturing("sentinel") as seen:
        weight, lost = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
        optimizer = torch.optim.SGD([weight, lost], lr=0.1)
        for step in range(3):
            weight.grad = torch.ones(3)
            if step == 1:
                lost.data.untyped_storage().resize_(0)
            optimizer.step()
    assert_written(seen, expected)
    gap = seen.coverage["gaps"]["unreadable-tensor"]
    assert gap["touches_state"] and gap["first_seq"] == seen.states[1].seq


def test_an_ordinary_step_finds_nothing_out_anew(monkeypatch):
    found = []
    original = sums._Known
    monkeypatch.setattr(sums, "_Known", lambda *args: found.append(1) or original(*args))
    with capturing("sentinel") as seen:
        model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
        optimizer = torch.optim.AdamW(model.parameters())
        made = []
        for _ in range(6):
            model(torch.randn(5, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            made.append(len(found))
    assert len(seen.states) == 7
    assert made == [1] * 6, "gradients that are made anew in each step lie as those before"
