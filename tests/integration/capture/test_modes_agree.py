# ruff: noqa: E402  (torch may be missing)
"""What each mode says about one planted fault, and what a capture window changes: nothing but what it could not look at."""

import ctypes

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch import nn
from torch.nn import functional as F

from opguard_core.certify.answer import to_dict
from opguard_core.certify.compare import compare
from tests.support.recorded import record

STEP = 3


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 8)

    def forward(self, x, fault):
        hidden = self.up(x)
        if fault == "before-multiplication":
            poke(hidden)
        hidden = hidden * (1.5 if fault == "factor" else 1.25)
        hidden = F.gelu(hidden)
        if fault == "before-norm":
            poke(hidden)
        return self.down(self.norm(hidden))


def poke(tensor):
    """Change an element below the dispatcher, without a version counter that moves."""
    address = tensor.untyped_storage().data_ptr()
    ctypes.cast(address, ctypes.POINTER(ctypes.c_float))[0] += 1.0


def program(fault="", *, at=STEP, steps=6):
    def train():
        torch.manual_seed(0)
        model = Model()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        for step in range(steps):
            now = fault if step == at else ""
            if now == "eps":
                optimizer.param_groups[0]["eps"] = 1e-3
            x = torch.randn(4, 8)
            (model(x, now) - x).square().mean().backward()
            if now == "weight":
                poke(model.norm.weight)
            optimizer.step()
            optimizer.zero_grad()

    return train


@pytest.fixture
def judged(tmp_path):
    def run(fault, mode, steps=None, **options):
        reference = record(tmp_path / "reference", program(), mode=mode, steps=steps)
        suspect = record(tmp_path / "suspect", program(fault, **options), mode=mode, steps=steps)
        return to_dict(compare(reference, suspect))

    return run


def brief(answer):
    pivot = answer["pivot"]
    assert pivot is not None, (answer["verdict"], answer["reasons"])
    return pivot["step"], pivot["operator"], pivot["suspect"]["text"], pivot["origin"], pivot["origin_alternatives"]


NORM = "aten.native_layer_norm.default", "self.norm(hidden)"
FACTOR = "aten.mul.Tensor", 'hidden * (1.5 if fault == "factor" else 1.25)'
EITHER = ["operator", "mutated"]
SAID = [
    ("before-norm", "verify", (*NORM, "mutated", [])),
    ("before-norm", "full", (*NORM, "operator", ["mutated"])),
    ("before-norm", "trusted", (*NORM, "unobserved-producer", EITHER)),
    ("before-multiplication", "verify", (*FACTOR, "mutated", [])),
    ("before-multiplication", "full", (*FACTOR, "operator", ["mutated"])),
    # The multiplication is trusted: its first reader that is looked at is the place, and nothing is said of what made it.
    ("before-multiplication", "trusted", (*NORM, "unobserved-producer", EITHER)),
    ("factor", "full", (*FACTOR, "argument", [])),
    ("factor", "trusted", (*FACTOR, "argument", EITHER)),
    ("eps", "full", ("aten.add_.Tensor", "optimizer.step()", "argument", [])),
    ("eps", "trusted", ("aten.add_.Tensor", "optimizer.step()", "argument", EITHER)),
]


QUICK = {("before-norm", "verify"), ("before-norm", "full"), ("before-norm", "trusted"), ("eps", "trusted")}


def tiered(*values):
    """The quick tier runs some of them; the full tier all."""
    return pytest.param(*values, marks=[] if values[:2] in QUICK else [pytest.mark.full], id="-".join(values[:2]))


@pytest.mark.parametrize(("fault", "mode", "said"), [tiered(*entry) for entry in SAID])
def test_a_mode_names_what_it_could_not_rule_out(judged, fault, mode, said):
    answer = judged(fault, mode)
    assert brief(answer) == (STEP, *said)


@pytest.mark.parametrize("mode", [*(pytest.param(mode, marks=pytest.mark.full) for mode in ("verify", "full")), "trusted"])
def test_equal_programs_are_identical_in_every_mode(judged, mode):
    assert judged("", mode)["verdict"] == "identical"


@pytest.mark.parametrize(
    ("fault", "mode"), [tiered(fault, mode) for fault in ("before-norm", "factor") for mode in ("verify", "full", "trusted")]
)
def test_a_window_around_the_fault_gives_the_pivot_of_the_whole_trace(tmp_path, fault, mode):
    found = []
    for name, steps in (("whole", None), ("window", (STEP - 1, STEP + 1))):
        runs = [record(tmp_path / name / side, program(own), mode=mode, steps=steps) for side, own in (("a", ""), ("b", fault))]
        found.append(to_dict(compare(*runs)))
    assert brief(found[0]) == brief(found[1])
    assert found[1]["compared"]["steps"] == [STEP - 2, STEP - 1, STEP], "a window lists the steps that were recorded, and no others"


def test_a_window_of_equal_programs_is_identical_over_its_steps(judged):
    answer = judged("", "verify", steps=(2, 4))
    assert answer["verdict"] == "identical", answer["reasons"]
    assert answer["compared"]["steps"] == [1, 2, 3]
    assert answer["compared"]["parameter_updates"] > 0


@pytest.mark.parametrize("fault", ["factor", "weight"])
def test_a_fault_before_the_window_is_state_that_differs_at_its_start_and_no_operator(judged, fault):
    answer = judged(fault, "verify", at=1, steps=(4, 6))
    assert answer["verdict"] == "diverged"
    assert answer["pivot"]["origin"] == "initial-state"
    assert answer["pivot"]["origin_alternatives"] == ["unobserved-producer"]
    assert answer["pivot"]["step"] <= 4
    assert answer["pivot"]["phase"] == "state"


def test_outside_a_window_no_mode_is_on_the_stack_and_inside_there_is(tmp_path):
    depths = []

    def train():
        weight = nn.Parameter(torch.ones(2))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        for _ in range(7):
            depths.append(torch._C._len_torch_dispatch_stack())
            weight.grad = torch.ones(2)
            optimizer.step()

    record(tmp_path / "trace", train, steps=(3, 5))
    assert depths == [0, 0, 1, 1, 1, 0, 0]


def test_a_mode_of_the_program_stays_above_ours_when_the_window_begins(tmp_path):
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counting(TorchDispatchMode):
        num_calls = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.num_calls += 1
            return func(*args, **(kwargs or {}))

    weight = nn.Parameter(torch.ones(2))
    counting = Counting()

    def train():
        optimizer = torch.optim.SGD([weight], lr=0.1)
        with counting:
            for _ in range(6):
                weight.grad = torch.ones(2)
                optimizer.step()
        torch.ones(2)

    run = record(tmp_path / "trace", train, steps=(3, 5))
    assert torch._C._len_torch_dispatch_stack() == 0
    assert counting.num_calls >= 6
    windows = {
        table.window for table in run.ranks[0].iter_windows() for event in range(len(table)) if table.event(event).kind == "operator"
    }
    assert windows == {3, 4}


def test_a_sentinel_and_a_full_trace_are_not_compared(tmp_path):
    runs = [record(tmp_path / mode, program(), mode=mode) for mode in ("sentinel", "full")]
    answer = to_dict(compare(*runs))
    assert answer["verdict"] == "inconclusive"
    assert answer["reasons"][0]["slug"] == "plan-mismatch"
    assert "'sentinel' and 'full'" in answer["reasons"][0]["text"]
    assert answer["pivot"] is None


def resumed_without_a_count():
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.load_state_dict(optimizer.state_dict())
    (model(torch.randn(4, 8), "")).square().mean().backward()
    optimizer.step()


def begun():
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    (model(torch.randn(4, 8), "")).square().mean().backward()
    optimizer.step()


@pytest.mark.parametrize(("program_of_suspect", "told"), [(resumed_without_a_count, True), (begun, False)])
def test_a_resumed_run_that_does_not_say_where_it_began_is_told(tmp_path, program_of_suspect, told):
    answer = to_dict(compare(record(tmp_path / "a", begun), record(tmp_path / "b", program_of_suspect)))
    assert ("start-unknown" in [reason["slug"] for reason in answer["reasons"]]) is told
    assert answer["verdict"] == "identical"
