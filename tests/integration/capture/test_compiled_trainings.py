# ruff: noqa: E402  (torch may be missing)
"""Compiled code as trainings use it: beside equal code, split where DDP's buckets end, sharded, and with a compiled backward.

Each program stays what it is while it is observed, and whatever was generated for it is told of with lines of its own.
"""

import pytest

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.torch,
    pytest.mark.full,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore"),
]  # torch's compiler warns of its own code

import torch.distributed as dist
from torch import nn

from opguard_core.certify.compare import compare
from opguard_core.engines import native_build
from opguard_core.trace.reader import Run
from tests.support.compiled_side import KERNEL, Side


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    """What Inductor builds here is built here, and what we keep of it is ours."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("inductor")))
        yield
        torch._dynamo.reset()
        torch._inductor.codecache.PyCodeCache.cache_clear()


@pytest.fixture(scope="module")
def group():
    """A process group of this process alone, with buckets of gradients that a small model fills."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "_DEFAULT_FIRST_BUCKET_BYTES", 512)
        yield
    dist.destroy_process_group()


def engines():
    return ["dispatch"] if isinstance(native_build.load(), native_build.Missing) else ["dispatch", "native"]


def scaled(slope):
    """An autograd function with a backward of its own; ``slope`` is the line that a fault changes."""

    class Right(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x * 1.25

        @staticmethod
        def backward(ctx, gradient):
            return gradient * ctx.saved_tensors[0] * 2.5

    class Wrong(Right):
        @staticmethod
        def backward(ctx, gradient):
            return gradient * ctx.saved_tensors[0] * 2.51

    return Right if slope == 2.5 else Wrong


class Middle(nn.Module):
    def __init__(self, slope):
        super().__init__()
        self.up, self.function = nn.Linear(16, 16), scaled(slope)

    def forward(self, x):
        return self.function.apply(self.up(x)) - x


class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(16, 16)

    def forward(self, x):
        return x + torch.tanh(self.up(x)) * 1.5


def blocks(slope):
    torch.manual_seed(3)
    return nn.Sequential(Middle(slope), Outer())


def train(model, parameters, backward=torch.Tensor.backward, steps=2):
    optimizer, losses = torch.optim.SGD(parameters, lr=0.1), []
    for number in range(steps):
        torch.manual_seed(number)
        loss = model(torch.randn(8, 16)).square().mean()
        backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return losses


def in_buckets(slope):
    def run():
        net = blocks(slope)
        return train(nn.parallel.DistributedDataParallel(torch.compile(net), bucket_cap_mb=0.001), net.parameters())

    return run


def sharded(slope):
    def run():
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        net, mesh = blocks(slope), init_device_mesh("cpu", (1,))
        for block in net:
            block.compile()
            fully_shard(block, mesh=mesh)
        fully_shard(net, mesh=mesh)
        return train(net, net.parameters())

    return run


def compiled_backward(slope, eager=False):
    """One of its nodes is one that torch computes otherwise under a mode: we hook those of a backward that is not compiled."""

    def run():
        net = blocks(slope)
        region, mask = net if eager else torch.compile(net), torch.arange(16) > 12

        def backward(loss):
            with torch._dynamo.compiled_autograd._enable(torch.compile(backend="inductor")):
                loss.backward()

        return train(lambda x: region(x).masked_fill(mask, torch.tensor(0.5)), net.parameters(), backward, steps=3)

    return run


def sides_of(run, folder, names=("dispatch",)):
    bare = Side(run, folder / "bare", None)
    observed = {engine: Side(run, folder / engine, engine) for engine in names}
    for side in observed.values():
        assert side.program == bare.program and side.breaks == bare.breaks
        assert not side.gaps
        assert side.compiled["launches"] == sum(operator.startswith("inductor.") for operator in side.events["operator"])
        assert "recompute" not in side.events["phase"]
    return bare, observed


def found_in_its_backward(right, run, folder):
    """A constant of the autograd function's backward is another one: it is found at its kernel, and the contract tells of other code."""
    wrong = Side(run, folder / "wrong", "dispatch")
    # One of them was compiled here, with a backward of nothing but shapes; the other came from a cache.
    assert len({side.events["operator"].count("opguard.backward.begin") for side in (right, wrong)}) == 1
    contracts = [side.outcome.manifest["contract"]["compile.code"] for side in (right, wrong)]
    assert contracts[0] != contracts[1], "the contract tells that the code differs"
    verdict = compare(Run.open(right.folder), Run.open(wrong.folder))
    assert verdict.verdict == "diverged", verdict.reasons
    pivot = verdict.pivot
    assert pivot.phase == "backward" and pivot.operator.startswith(KERNEL)
    # The right one's code comes from a cache that was filled without us.
    assert "return gradient * ctx.saved_tensors[0] * 2.51" in [place.text for place in pivot.stack.suspect], pivot.stack.suspect[-4:]


def one(x, weight):
    first = torch.tanh(x @ weight)
    return first * 1.25 @ weight


def two(x, weight):
    second = torch.tanh(x @ weight)
    return second * 1.25 @ weight


def test_regions_of_equal_code_have_lines_of_their_own(tmp_path):
    def run():
        regions, weight = [torch.compile(function) for function in (one, two)], nn.Parameter(torch.ones(16, 16) / 16)
        return train(lambda x: regions[1](regions[0](x, weight), weight), [weight])

    for side in sides_of(run, tmp_path, engines())[1].values():
        texts = side.outcome.tables["frames"]["text"]
        told = [
            texts[frame]
            for operator, phase, frame in zip(*(side.events[name] for name in ("operator", "phase", "user_frame")), strict=True)
            if phase == "forward" and (operator.startswith(KERNEL) or operator == "aten.mm.out")
        ]
        step = [text for text in told if "first" in text], [text for text in told if "second" in text]
        assert [len(texts) for texts in step] == [len(told) // 2] * 2
        assert told[: len(told) // 2] == told[len(told) // 2 :] == [*step[0][: len(told) // 4], *step[1][: len(told) // 4]]
        assert {region["region"]: [part["part"] for part in region["parts"]] for region in side.compiled["regions"]} == {
            "one#0": ["forward", "backward"],
            "two#0": ["forward", "backward"],
        }


def test_graphs_that_buckets_split_keep_their_backwards_apart(group, tmp_path):
    _, observed = sides_of(in_buckets(2.5), tmp_path)
    for side in observed.values():
        regions = side.compiled["regions"]
        assert len(regions) > 1 and side.graphs == 1
        assert all([part["part"] for part in region["parts"]] == ["forward", "backward"] for region in regions)
        assert len({part["code"] for region in regions for part in region["parts"] if part["part"] == "backward"}) > 1
    found_in_its_backward(observed["dispatch"], in_buckets(2.51), tmp_path)


def test_sharded_blocks_stay_compiled_and_are_observed(group, tmp_path):
    _, observed = sides_of(sharded(2.5), tmp_path)
    found_in_its_backward(observed["dispatch"], sharded(2.51), tmp_path)


def test_a_backward_that_is_compiled_as_a_whole_is_observed(tmp_path):
    bare, observed = sides_of(compiled_backward(2.5), tmp_path)
    assert bare.graphs == 2, "a region and a backward"
    found_in_its_backward(observed["dispatch"], compiled_backward(2.51), tmp_path)


def test_a_compiled_backward_of_an_eager_forward_is_compiled_once(tmp_path):
    """Its guards read numbers that C++ hands over as tensors, which reach a mode as numbers."""
    bare, observed = sides_of(compiled_backward(2.5, eager=True), tmp_path, engines())
    assert bare.graphs == 1
    # Gradients of named calls are told by hooks, which would be in its graph.
    named = Side(compiled_backward(2.5, eager=True), tmp_path / "named", "dispatch", semantic=("0=block",))
    assert named.program == bare.program and named.breaks == bare.breaks
    assert named.outcome.manifest["coverage"]["gradients_of_named_calls_in_compiled_backwards"] == 3, "one a step"
    for side in observed.values():
        kernels = [
            phase for operator, phase in zip(side.events["operator"], side.events["phase"], strict=True) if operator.startswith(KERNEL)
        ]
        assert kernels and set(kernels) == {"backward"}
