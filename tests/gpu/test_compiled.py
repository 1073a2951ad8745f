"""Compiled code on a card: faults inside Triton kernels that Inductor generated, forward and backward, and in a step that is a graph."""

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from torch import nn  # noqa: E402  after the check above

from opguard_core.certify.compare import compare  # noqa: E402
from opguard_core.trace.reader import Run  # noqa: E402
from tests.support.compiled_side import Side  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA card: Inductor generates Triton kernels for it"),
]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
KERNEL = "inductor.triton_" if DEVICE == "cuda" else "inductor.cpp_fused"
ENGINES = ("dispatch", "native")


class Scaled(torch.autograd.Function):
    """Twice its input; what its gradient is multiplied with is a parameter of the test."""

    @staticmethod
    def forward(ctx, x, back):
        ctx.back = back
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return torch.tanh(gradient) * ctx.back, None


class Block(nn.Module):
    """Two products with elementwise work between them."""

    def __init__(self, forward_by, backward_by, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.up, self.down, self.norm = nn.Linear(256, 512), nn.Linear(512, 256), nn.LayerNorm(256)
        self.forward_by, self.backward_by = forward_by, backward_by

    def forward(self, x):
        hidden = torch.nn.functional.gelu(self.up(self.norm(x)))
        hidden = hidden * self.forward_by
        hidden = Scaled.apply(hidden, self.backward_by)
        return self.down(hidden)


def training(forward_by=1.25, backward_by=0.5, steps=2, **options):
    def run():
        net = Block(forward_by, backward_by).to(DEVICE)
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
        region = torch.compile(net, fullgraph=True, **options)
        for number in range(steps):
            torch.manual_seed(number)
            region(torch.randn(64, 256).to(DEVICE)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return [parameter.detach().cpu() for parameter in net.parameters()]

    return run


def sides(right, wrong, folder, engine):
    return [Side(run, folder / name, engine) for name, run in (("reference", right), ("suspect", wrong))]


def pivot_of(reference, suspect):
    verdict = compare(Run.open(reference.folder), Run.open(suspect.folder))
    assert verdict.verdict == "diverged", verdict.reasons
    return verdict.pivot


@pytest.mark.parametrize("engine", ENGINES)
def test_the_program_is_the_one_that_runs_without_us(engine, tmp_path):
    bare, observed = Side(training(), tmp_path / "bare", None), Side(training(), tmp_path / "observed", engine)
    assert observed.program == bare.program
    assert observed.compiled["level"] == "kernels" and observed.compiled["launches"] and not observed.gaps
    assert any(operator.startswith(KERNEL) for operator in observed.operators("backward"))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_fault_in_the_forward_of_a_block_is_found_at_its_kernel(engine, tmp_path):
    pivot = pivot_of(*sides(training(), training(forward_by=1.2501), tmp_path, engine))
    assert (pivot.phase, pivot.step) == ("forward", 0) and pivot.operator.startswith(KERNEL)
    assert any("self.forward_by" in place.text for place in pivot.stack.suspect)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_fault_in_the_backward_of_a_block_is_found_at_its_kernel(engine, tmp_path):
    pivot = pivot_of(*sides(training(), training(backward_by=0.5001), tmp_path, engine))
    assert (pivot.phase, pivot.step) == ("backward", 0) and pivot.operator.startswith(KERNEL)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_fault_in_a_step_that_is_a_graph_is_found(engine, tmp_path):
    """It is in all steps: found where the region runs before it is captured. In a later window it is found at the replay."""
    graphs = {"mode": "reduce-overhead", "steps": 5}
    reference, suspect = sides(training(**graphs), training(forward_by=1.2501, **graphs), tmp_path, engine)
    assert pivot_of(reference, suspect).operator.startswith(KERNEL)
    if DEVICE == "cuda":
        assert suspect.compiled["graphs"]["replays"] and "inductor.cuda_graph" in suspect.events["operator"]
    bare = Side(training(**graphs), tmp_path / "bare", None)
    assert reference.program == bare.program
