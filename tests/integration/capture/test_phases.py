# ruff: noqa: E402  (torch may be missing)
"""Phases, module paths, micro-batches, steps and the links from backward to forward."""

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch.utils.checkpoint import checkpoint

from tests.support.capturing import capturing
from tests.support.native import native_or_skip


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 4)

    def forward(self, x):
        return torch.tanh(self.fc(x))


class Net(torch.nn.Module):
    def __init__(self, mode=None):
        super().__init__()
        self.blocks = torch.nn.ModuleList([Block(), Block()])
        self.mode = mode

    def forward(self, x):
        for block in self.blocks:
            x = block(x) if self.mode is None else checkpoint(block, x, use_reentrant=self.mode)
        return x


def test_module_paths_are_those_of_named_modules():
    net = Net()
    with capturing() as seen:
        net(torch.ones(1, 4))
    assert [event.module for event in seen.events if "addmm" in event.operator] == ["blocks.0.fc", "blocks.1.fc"]
    assert [event.module for event in seen.events if "tanh" in event.operator] == ["blocks.0", "blocks.1"]


def test_backward_events_know_their_node_and_their_forward_event():
    net = Net()
    with capturing() as seen:
        net(torch.ones(1, 4)).sum().backward()
    backward = [event for event in seen.events if event.phase == "backward" and event.node]
    forward = {event.seq: event for event in seen.events}
    linked = {(event.node, forward[event.forward_seq].operator) for event in backward if event.forward_seq is not None}
    assert linked >= {("AddmmBackward0", "aten.addmm.default"), ("TanhBackward0", "aten.tanh.default")}
    tanhs = [event.forward_seq for event in backward if event.node == "TanhBackward0"]
    assert tanhs == sorted(tanhs, reverse=True)
    assert len(set(tanhs)) == 2


def test_a_view_between_two_operators_does_not_steal_a_link():
    w = torch.ones(3, 4, requires_grad=True)
    with capturing() as seen:
        y = w.exp()
        y = y.t().expand(2, 4, 3)
        torch.ones(3) + 1
        y.sum().backward()
    links = {event.node: event.forward_seq for event in seen.events if event.node}
    assert links["ExpBackward0"] == seen.of("exp").seq
    assert links.get("ExpandBackward0") is None


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.detach() * factor

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.factor, None


def test_a_custom_function_is_forward_then_backward_and_linked():
    x = torch.ones(3, requires_grad=True)
    with capturing() as seen:
        Scale.apply(x, 3.0).sum().backward()
    forward, backward = seen.of("mul", 0), seen.of("mul", 1)
    assert (forward.phase, backward.phase, backward.node) == ("forward", "backward", "ScaleBackward")
    assert backward.forward_seq == forward.seq
    assert seen.text(backward) == "grad * ctx.factor"


@pytest.mark.parametrize("engine", ["dispatch", "native"])
def test_a_backward_without_python_around_it_is_backward(engine):
    """As on the engine's own thread of a card: no frame of `backward()` is on the stack there, only what its nodes call."""

    class Again(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, block):
            ctx.save_for_backward(x)
            ctx.block = block
            with torch.no_grad():
                return block(x)

        @staticmethod
        def backward(ctx, grad):
            x = ctx.saved_tensors[0].detach().requires_grad_()
            with torch.enable_grad():
                y = ctx.block(x)
            return torch.autograd.grad(y, x, grad)[0], None

    if engine == "native":
        native_or_skip()
    x = torch.ones(1, 4, requires_grad=True)
    block = Block()
    with capturing(engine=engine) as seen:
        result = Scale.apply(Again.apply(x, block), 3.0)
        engine_itself = torch.autograd.Variable._execution_engine
        engine_itself.run_backward((result,), (torch.ones_like(result),), False, False, (), allow_unreachable=True, accumulate_grad=True)
    assert [event.phase for event in seen.events if "addmm" in event.operator] == ["eval", "recompute"]
    assert [event.phase for event in seen.events if event.node == "ScaleBackward"] == ["backward"]


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputation_of_a_checkpoint_is_a_phase_of_its_own(reentrant):
    net = Net(mode=reentrant)
    x = torch.ones(1, 4, requires_grad=True)
    with capturing() as seen:
        net(x).sum().backward()
    phases = [event.phase for event in seen.events if "addmm" in event.operator]
    assert phases == ["forward", "forward", "recompute", "recompute"]
    assert all(event.module.startswith("blocks.") for event in seen.events if event.phase == "recompute")
    assert {event.phase for event in seen.events if event.operator.startswith("aten.mm.")} == {"backward"}
    # The backward inside a reentrant checkpoint is no micro-batch of its own.
    assert [marker.operator for marker in seen.markers if "backward" in marker.operator] == [
        "opguard.backward.begin",
        "opguard.backward.end",
    ]


def test_a_graph_of_the_backward_is_still_backward():
    x = torch.ones(3, requires_grad=True)
    with capturing() as seen:
        (g,) = torch.autograd.grad(x.exp().sum(), x, create_graph=True)
        (g * g).sum().backward()
    assert {event.phase for event in seen.events if event.node} == {"backward"}


def test_evaluation_without_gradients_is_a_phase_of_its_own():
    net = Net()
    with capturing() as seen:
        net(torch.ones(1, 4))
        with torch.no_grad():
            net(torch.ones(1, 4))
        with torch.inference_mode():
            net(torch.ones(1, 4))
    assert [event.phase for event in seen.events if "addmm" in event.operator] == ["forward"] * 2 + ["eval"] * 4


def test_a_no_grad_part_of_a_training_forward_is_forward():
    class Frozen(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Block()

        def forward(self, x):
            with torch.no_grad():
                return self.inner(x)

    with capturing() as seen:
        Frozen()(torch.ones(1, 4))
    assert seen.of("addmm").phase == "forward"


def test_the_loss_outside_modules_is_forward_and_clipping_is_optimizer():
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with capturing() as seen:
        x = torch.randn(2, 4)
        loss = (net(x) - 1).pow(2).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.01)
        optimizer.step()
        with torch.no_grad():
            for p in net.parameters():
                p.mul_(0.99)
    phases = {event.operator.split(".")[1]: event.phase for event in seen.events}
    assert phases["randn"] == "data"
    assert phases["sub"] == phases["mean"] == "forward"
    assert phases["_foreach_norm"] == phases["linalg_vector_norm"] == phases["_foreach_mul_"] == phases["mul_"] == "optimizer"


def test_batches_made_by_a_loader_are_data():
    class Rows(torch.utils.data.Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            return torch.full((2,), float(index)) * 2

    with capturing() as seen:
        for _ in torch.utils.data.DataLoader(Rows(), batch_size=2):
            pass
    assert {event.phase for event in seen.events} == {"data"}
    assert [marker.operator for marker in seen.markers].count("opguard.data.fetch") == 3  # the third finds the end
    assert "stack" in {event.operator.split(".")[1] for event in seen.events}


def test_micro_batches_count_top_level_backward_calls_since_the_update():
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with capturing() as seen:
        for _ in range(2):
            for _ in range(3):
                net(torch.ones(1, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    begins = [(event.window, event.microbatch) for event in seen.markers if event.operator == "opguard.forward.begin"]
    assert begins == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]


def test_loading_state_is_marked_and_a_resumed_optimizer_sets_the_offset():
    p = torch.nn.Parameter(torch.ones(2))
    first = torch.optim.AdamW([p])
    for _ in range(3):
        p.grad = torch.ones(2)
        first.step()
    with capturing() as seen:
        second = torch.optim.AdamW([p])
        second.load_state_dict(first.state_dict())
        p.grad = torch.ones(2)
        second.step()
    end = seen.of("opguard.optimizer.end")
    assert end.window == 3
    assert "resumed=3" in end.args
    assert "opguard.state.load" in {marker.operator for marker in seen.markers}


def test_a_given_offset_wins():
    p = torch.nn.Parameter(torch.ones(2))
    with capturing(step_offset=100) as seen:
        optimizer = torch.optim.SGD([p], lr=0.1)
        p.grad = torch.ones(2)
        optimizer.step()
    assert seen.of("opguard.optimizer.end").window == 100
