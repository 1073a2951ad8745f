# ruff: noqa: E402  (torch may be missing)
"""Faults inside native functions, planted in C: found at the function if its call was observed, and never blamed on it if it is not its."""

import ctypes
import itertools

import pytest

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("quick_sessions"), pytest.mark.filterwarnings("ignore")]

from opguard_core.certify.compare import compare
from opguard_core.plan.keeping import Transplant
from opguard_core.trace.reader import Run
from tests.support.engine_programs.catalogue import Program
from tests.support.engine_streams import outcome
from tests.support.keeping import observe
from tests.support.outside.building import extension
from tests.support.outside.calling import called

FUSED, SKIPS, SCALE, AFTER = 1, 2, 3, 4  # as in extension.c
NAME = "extension.outside_extension"
CASES = {
    # what is wrong: operator, slot, origin, phase
    "forward": (f"{NAME}.fused", "mut.1", "operator", "forward"),
    "backward": (f"{NAME}.fused", "mut.1", "operator", "backward"),
    "writes nothing": (f"{NAME}.fused", "mut.1", "operator", "forward"),
    "around an operator": (f"{NAME}.after", "out.0", "operator", "forward"),
    "in the operator inside": ("aten.neg.default", "in.0", "mutated", "forward"),
    "in place": (f"{NAME}.scale_", "mut.0", "operator", "data"),
    "an argument": (f"{NAME}.scale_", "mut.0", "argument", "data"),
    "told to Python": (f"{NAME}.fused", "mut.1", "operator", "data"),
    "unobserved": ("aten.addmm.default", "in.1", "unobserved-producer", "forward"),
    "unobserved, one side": ("aten.addmm.default", "in.1", "mutated", "forward"),
    "before the call": (f"{NAME}.fused", "in.0", "mutated", "data"),
    "nothing": None,
}
QUICK = {("forward", "dispatch"), ("around an operator", "dispatch"), ("unobserved", "dispatch"), ("before the call", "dispatch")}


class Training:
    """A small training that calls an extension in every step.

    Args:
        case: What goes wrong in step 2.
        wrong: Whether it does.
    """

    def __init__(self, case, wrong):
        self.case, self.wrong, self.step = case, wrong, 0
        self.fault = ctypes.c_int.in_dll(ctypes.CDLL(extension().__file__), "outside_fault")
        self.buffer = torch.zeros(4, 8)

    def bad(self, case):
        return self.case == case and self.wrong and self.step == 2

    def plant(self, case, fault):
        self.fault.value = fault if self.bad(case) else self.fault.value

    def __call__(self):
        training, ext = self, extension()
        self.fault.value = 0

        class Function(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                training.plant("forward", FUSED)
                training.plant("writes nothing", SKIPS)
                made = training.buffer if training.case == "writes nothing" else torch.empty_like(x)
                called(ext.fused, x, made, 1.5)
                return made.clone()

            @staticmethod
            def backward(ctx, gradient):
                training.plant("backward", FUSED)
                made = torch.empty_like(gradient)
                called(ext.fused, gradient.contiguous(), made, 1.5)
                return made

        class Around(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                def inner(value):
                    if training.bad("in the operator inside"):
                        poke(value)
                    return torch.neg(value)

                training.plant("around an operator", AFTER)
                return called(ext.after, inner, x, True)

            @staticmethod
            def backward(ctx, gradient):
                return gradient * -2

        def poke(tensor, by=0.5):
            ctypes.cast(tensor.untyped_storage().data_ptr(), ctypes.POINTER(ctypes.c_float))[1] += by

        torch.manual_seed(0)
        layers = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
        optimizer = torch.optim.SGD([*layers[0].parameters(), *layers[1].parameters()], lr=0.1)
        data = torch.randn(4, 8)
        for self.step in range(4):
            hidden = Function.apply(layers[0](data))
            if "operator" in self.case and self.case != "forward":
                hidden = Around.apply(hidden)
            value = hidden.detach()
            if self.case in ("in place", "an argument"):
                self.plant("in place", SCALE)
                called(ext.scale_, value, 2.5 if self.bad("an argument") else 2.0)
            if self.case == "unobserved":
                ext.scale_(value, 2.5 if self.bad("unobserved") else 2.0)
            if self.bad("unobserved, one side") or self.bad("before the call"):
                poke(value)
            if self.case in ("before the call", "told to Python"):
                self.plant("told to Python", FUSED)
                made = torch.empty_like(value)
                called(ext.fused, value, made, 1.0)
                hidden = hidden + made if self.case == "before the call" else hidden * (1 + called(ext.sum, made))
            optimizer.zero_grad()
            loss = layers[1](hidden).pow(2).mean()
            loss.backward()
            optimizer.step()
            loss.item()
        return loss


def cases():
    for case in CASES:
        for engine in ("dispatch", "native"):
            marks = () if (case, engine) in QUICK else pytest.mark.full
            yield pytest.param(case, engine, id=f"{case}-{engine}", marks=marks)


@pytest.mark.parametrize(("case", "engine"), list(cases()))
def test_the_fault_is_found_where_it_is(tmp_path, case, engine):
    for side in ("reference", "suspect"):
        outcome(Program(case, Training(case, side == "suspect")), engine, tmp_path / side, "verify")
    verdict = compare(Run.open(tmp_path / "reference"), Run.open(tmp_path / "suspect"))
    if CASES[case] is None:
        assert verdict.verdict == "identical"
        return
    pivot = verdict.pivot
    assert verdict.verdict == "diverged"
    assert (pivot.operator, pivot.slot, pivot.origin, pivot.phase) == CASES[case]
    assert pivot.step == 2
    if pivot.origin == "operator":
        # What an operator inside has made was not looked at again before the rest of the call read it.
        assert pivot.origin_alternatives == (["mutated"] if case == "around an operator" else [])


def test_an_outside_call_is_kept_and_its_result_transplanted(tmp_path):
    def program(fault):
        def run():
            ctypes.c_int.in_dll(ctypes.CDLL(extension().__file__), "outside_fault").value = 0
            seen = []
            for step in range(3):
                x, made = torch.arange(4.0), torch.empty(4)
                if step == 1:
                    ctypes.c_int.in_dll(ctypes.CDLL(extension().__file__), "outside_fault").value = fault
                called(extension().after, lambda value: value, x, False)
                called(extension().fused, x, made, 2.0)
                seen.append((made + 1).tolist())
            return seen

        return run

    key = observe(tmp_path / "first", program(0)).keys("outside_extension")
    fused = [one for one in key if one.operator.endswith(".fused")]
    assert [one.occurrence for one in fused] == [0, 1, 2]
    right = observe(tmp_path / "right", program(0), keep=[fused[1]])
    kept = right.kept()
    assert (kept.boundary.operator, sorted(kept.slots)) == (f"{NAME}.fused", ["in.0", "mut.1"])
    assert torch.frombuffer(bytearray(kept.slots["mut.1"].data), dtype=torch.float32).tolist() == [0, 2, 4, 6]
    wrong = observe(tmp_path / "wrong", program(FUSED))
    assert wrong.result != right.result
    healed = observe(tmp_path / "healed", program(FUSED), transplants=[Transplant(fused[1], right.kept_path())])
    assert healed.result == right.result
    (report,) = healed.facts["transplanted"]
    assert report["done"]


def test_what_an_outside_call_reads_is_told_as_it_was_put_there(tmp_path):
    def program(value):
        x, made = torch.full((4,), value), torch.empty(4)
        called(extension().fused, x, made, 2.0)
        return made.tolist()

    ctypes.c_int.in_dll(ctypes.CDLL(extension().__file__), "outside_fault").value = 0
    (key,) = [one for one in observe(tmp_path / "first", lambda: program(1.0)).keys("outside_extension") if one.operator.endswith(".fused")]
    right = observe(tmp_path / "right", lambda: program(1.0), keep=[key])
    put = [Transplant(key, right.kept_path(), {"in.0": "in.0"})]
    healed = observe(tmp_path / "healed", lambda: program(3.0), transplants=put, mode="full")
    assert healed.result == right.result
    told = []
    for run in (healed, right):
        events = itertools.takewhile(bool, map(run.trace.event_at, itertools.count()))
        told.append(next({slot.slot: slot.mix64 for slot in slots} for event, slots in events if event.operator == key.operator))
    assert told[0] == told[1]
