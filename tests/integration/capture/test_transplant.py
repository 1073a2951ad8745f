# ruff: noqa: E402  (torch may be missing)
"""A transplant takes a planted bug out, from the operator on and in the gradients; one that does not fit ends the run untouched."""

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from opguard_core.errors import TraceFormatError
from opguard_core.plan.keeping import Transplant
from opguard_core.trace.boundary import BoundaryKey
from tests.support.keeping import observe


def bits(tensors):
    return [tensor.detach().clone().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() for tensor in tensors]


def program():
    """Three steps of a small training; returns what it computes on its way."""
    torch.manual_seed(5)
    net = torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9)
    seen = []
    for _ in range(3):
        value = torch.tanh(net(torch.randn(6, 4)))
        loss = torch.exp(value * 0.1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        seen.extend([value, loss, net.weight.grad.clone(), net.bias.grad.clone(), net.weight.clone()])
        optimizer.step()
    return seen


def test_a_transplant_of_one_result_makes_everything_after_it_what_it_would_have_been(tmp_path, monkeypatch):
    right = observe(tmp_path / "first", program)
    keys = [key for key in right.keys("tanh") if key.step == 1]
    right = observe(tmp_path / "right", program, keep=keys)
    wrong = observe(tmp_path / "wrong", faulty_kernel(program, monkeypatch))
    assert bits(wrong.result) != bits(right.result)
    (key,) = [key for key in wrong.keys("tanh") if key.step == 1]
    assert key == keys[0]
    healed = observe(tmp_path / "healed", faulty_kernel(program, monkeypatch), transplants=[Transplant(key, right.kept_path())])
    assert bits(healed.result) == bits(right.result)
    (report,) = healed.facts["transplanted"]
    assert (report["done"], report["changed"], report["slots"]) == (True, ["out.0"], {"out.0": "out.0"})
    event, slots = healed.trace.event_at(report["seq"])
    reference = {slot.slot: slot.mix64 for slot in right.trace.event_at(right.kept().seq)[1]}
    assert {slot.slot: slot.mix64 for slot in slots} == reference
    assert event.operator == "aten.tanh.default"


def faulty_kernel(code, monkeypatch):
    """Run a program whose second tanh computes one wrong bit: the operator's own call is replaced."""
    from opguard_core.engines.operators import OperatorPlan

    calls = iter(range(1000))
    original = OperatorPlan.__init__

    def with_fault(self, func):
        original(self, func)
        if self.operator == "aten.tanh.default":
            kernel = self.call

            def call(*args, **kwargs):
                result = kernel(*args, **kwargs)
                if next(calls) == 1:
                    result.view(torch.int32).view(-1)[2] ^= 1 << 12
                return result

            self.call = call

    monkeypatch.setattr(OperatorPlan, "__init__", with_fault)

    def run():
        try:
            return code()
        finally:
            monkeypatch.setattr(OperatorPlan, "__init__", original)

    return run


def one(folder, code, *operators, **options):
    """A run that keeps the first boundary of these operators."""
    keys = observe(folder.with_name(f"{folder.name}-keys"), code).keys(*operators)
    return observe(folder, code, keep=keys, **options), keys


def test_version_counters_and_the_graph_are_what_they_would_have_been(tmp_path):
    def code(scale):
        def run():
            x = torch.arange(1.0, 5.0, requires_grad=True)
            y = x * scale
            y.add_(1)
            z = torch.exp(y)
            z.sum().backward()
            return y._version, z._version, type(y.grad_fn).__name__, type(z.grad_fn).__name__, z.detach().clone(), x.grad.clone()

        return run

    right, _ = one(tmp_path / "right", code(2.0), "add_")
    wrong = observe(tmp_path / "wrong", code(3.0))
    (key,) = wrong.keys("add_")
    healed = observe(tmp_path / "healed", code(3.0), transplants=[Transplant(key, right.kept_path())])
    assert healed.result[:4] == right.result[:4]
    assert torch.equal(healed.result[4], right.result[4])  # exp saw the new bytes and saved its own
    assert torch.equal(healed.result[5], right.result[5] * 1.5)  # the backward of the faulty product is still the faulty one


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("strided", lambda s: torch.ones(4, 3).t() * s),
        ("bfloat16", lambda s: torch.ones(4, 3, dtype=torch.bfloat16) * s),
        ("complex64", lambda s: torch.full((3,), 1 + 2j) * s),
        ("bool", lambda s: torch.arange(6) * int(s) > 7),
        ("int64", lambda s: torch.arange(6) * int(s)),
        ("scalar", lambda s: torch.tensor(1.5) * s),
        ("empty", lambda s: torch.ones(0, 2) * s),
        ("channels last", lambda s: torch.ones(2, 3, 4, 4).contiguous(memory_format=torch.channels_last) * s),
    ],
)
def test_results_of_every_layout_and_type_can_be_replaced(tmp_path, name, make):
    right, keys = one(tmp_path / "right", lambda: make(2.0))
    wrong = lambda: make(3.0)  # noqa: E731
    plain = observe(tmp_path / "wrong", wrong)
    (key,) = [key for key in plain.keys() if key.operator == keys[-1].operator and key.occurrence == keys[-1].occurrence]
    healed = observe(tmp_path / "healed", wrong, transplants=[Transplant(key, right.kept_path(len(keys) - 1))])
    assert bits([healed.result]) == bits([right.result])
    assert healed.result.stride() == plain.result.stride()


def test_lists_and_several_places_are_replaced_in_one_run(tmp_path):
    def code(scale):
        def run():
            tensors = [torch.ones(2), torch.ones(3)]
            torch._foreach_mul_(tensors, scale)
            return [*tensors, tensors[0] + scale]

        return run

    right, keys = one(tmp_path / "right", code(2.0), "_foreach_mul_", "add")
    transplants = [Transplant(key, right.kept_path(index)) for index, key in enumerate(keys)]
    healed = observe(tmp_path / "healed", code(3.0), transplants=transplants)
    assert bits(healed.result) == bits(right.result)
    assert [report["done"] for report in healed.facts["transplanted"]] == [True, True]


def test_what_an_operator_reads_can_be_replaced_for_everyone_who_reads_it_later(tmp_path):
    def code(fill):
        def run():
            batch = torch.full((3,), fill)
            batch.numpy()[:] = fill  # as a loader would, seen by no operator
            return torch.neg(batch), torch.abs(batch)

        return run

    right, (key,) = one(tmp_path / "right", code(2.0), "neg")
    healed = observe(tmp_path / "healed", code(3.0), transplants=[Transplant(key, right.kept_path(), {"in.0": "in.0"})])
    assert bits(healed.result) == bits(right.result)
    seq = healed.facts["transplanted"][0]["seq"]
    read = {slot.slot: slot.mix64 for slot in healed.trace.event_at(seq)[1]}
    assert read == {slot.slot: slot.mix64 for slot in right.trace.event_at(right.kept().seq)[1]}


UNFIT = {
    "shape": lambda: torch.ones(5) * 2,
    "dtype": lambda: torch.ones(3, dtype=torch.float64) * 2,
}


@pytest.mark.parametrize("name", UNFIT)
def test_a_result_of_another_form_ends_the_run_before_anything_is_written(tmp_path, name):
    right, (key,) = one(tmp_path / "right", lambda: torch.ones(3) * 2, "mul")
    went_on = []

    def code():
        try:
            result = UNFIT[name]()
        except Exception:
            went_on.append("caught")
            raise
        went_on.append(result)

    wrong = observe(tmp_path / "keys", UNFIT[name])
    (key,) = wrong.keys("mul")
    with pytest.raises(SystemExit, match="transplant-failed"):
        observe(tmp_path / "healed", code, transplants=[Transplant(key, right.kept_path())])
    assert went_on == []


def test_slots_that_are_not_there_write_nothing_of_those_that_are(tmp_path):
    right, (key,) = one(tmp_path / "right", lambda: torch.ones(3).mul_(2), "mul_")
    target = torch.ones(3)
    (key,) = observe(tmp_path / "keys", lambda: target.mul_(5)).keys("mul_")
    asked = Transplant(replaced(key, "target.mul_(3)"), right.kept_path(), {"mut.0": "mut.0", "out.4": "mut.0"})
    with pytest.raises(SystemExit, match=r"out\.4"):
        observe(tmp_path / "healed", lambda: target.mul_(3), transplants=[asked])
    assert target.tolist() == [15.0] * 3  # 5 * 3: what the program computed, and nothing of what was kept


def replaced(key, text):
    return BoundaryKey(**{**key.as_dict(), "text": text})


def test_a_boundary_that_does_not_occur_is_told_and_changes_nothing(tmp_path):
    right, (key,) = one(tmp_path / "right", lambda: torch.ones(3) * 2, "mul")
    asked = Transplant(replaced(key, "elsewhere"), right.kept_path())
    run = observe(tmp_path / "healed", lambda: torch.ones(3) * 2, transplants=[asked])
    assert run.result.tolist() == [2.0] * 3
    (report,) = run.facts["transplanted"]
    assert (report["done"], report["reason"]) == (False, "the boundary did not occur")


def test_a_damaged_kept_file_is_refused_before_the_first_operator(tmp_path):
    right, (key,) = one(tmp_path / "right", lambda: torch.ones(3) * 2, "mul")
    path = right.kept_path()
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    ran = []
    with pytest.raises(TraceFormatError):
        observe(tmp_path / "healed", lambda: ran.append(1), transplants=[Transplant(key, path)])
    assert ran == []


def test_elements_that_share_memory_are_refused(tmp_path):
    from opguard_core.probe.content import refusal

    assert refusal(torch.ones(1).expand(3)) == "several of its elements share memory"
    assert refusal(torch.ones(3, 4).t()) == ""
