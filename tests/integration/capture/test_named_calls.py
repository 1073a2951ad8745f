# ruff: noqa: E402  (torch may be missing)
"""Named calls and values in a captured training: what is told of them, by both engines alike, and that nothing changes."""

import functools
import threading

import pytest

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.timeout(900)]  # building the engine

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from opguard_core import marks
from opguard_core.engines import semantic_op
from tests.support.capturing import capturing
from tests.support.engine_programs.catalogue import Program
from tests.support.engine_streams import outcome
from tests.support.native import native_or_skip

ORDERS = ("blocks.*=layer.*", "blocks.*.norm", "tests.support.functions:smooth=smooth", "absent.*", "json:nothing")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up = nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, x, *, scale):
        return {"hidden": x + self.up(self.norm(x)) * scale, "unused": (scale, "text", None)}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, x):
        scale = torch.tensor(0.5)
        x = checkpoint(lambda value: self.blocks[0](value, scale=scale)["hidden"], x, use_reentrant=False)
        return self.blocks[1](x, scale=scale)["hidden"]


def program():
    """A training with every way to name something; what it computes is returned."""
    from opguard_core import boundary, probe

    named = marks.named  # as `boundary` where a capture is announced

    def loss_of(value):
        with boundary("loss", value) as block:
            return block.returns(probe("square", value.square()).mean())

    def parts(value):
        yield value * 1
        return value * 2

    def fails(value):
        raise ValueError(value.shape)

    model, split, failing = Model(), named("parts", parts), named("fails", fails)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(2):
        for _ in range(2):
            loss = named("objective", loss_of)(model(torch.ones(2, 8) + step))
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    for _ in split(torch.ones(3)):
        pass
    try:
        failing(torch.ones(3, requires_grad=True))
    except ValueError:
        pass
    worker = threading.Thread(target=lambda: probe("of-thread", torch.ones(4) * 3))
    worker.start()
    worker.join()
    return [parameter.detach().clone() for parameter in model.parameters()]


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    return outcome(Program("named", program), None, tmp_path_factory.mktemp("bare"))


@pytest.fixture(scope="module")
def by_engine(tmp_path_factory):
    """The program as an engine sees it, once each."""

    @functools.cache
    def run(engine):
        if engine == "native":
            native_or_skip()
        return outcome(Program("named", program), engine, tmp_path_factory.mktemp(engine) / "run", semantic=ORDERS)

    return run


@pytest.fixture(params=["dispatch", "native"])
def seen(request, by_engine):
    return by_engine(request.param)


def rows(outcome):
    """Named events as (name, args without its first word, window, microbatch, phase, module, slots)."""
    events, slots = outcome.tables["events"], outcome.tables["slots"]
    told = []
    for at, kind in enumerate(events["kind"]):
        if kind == "semantic":
            mine = [slots["slot"][row] for row, seq in enumerate(slots["seq"]) if seq == events["seq"][at]]
            told.append((events["operator"][at], *(events[name][at] for name in ("args", "window", "microbatch", "phase", "module")), mine))
    return told


def test_naming_changes_nothing_that_is_computed(bare, seen):
    assert (seen.result, seen.warned, seen.random) == (bare.result, bare.warned, bare.random)


def test_what_is_told_of_one_microbatch(seen):
    told = [row for row in rows(seen) if row[2:4] == (1, 1)]
    forward = [row[:2] + row[5:] for row in told if row[4] == "forward"]
    assert forward[:8] == [
        ("layer.0", "at=enter", "blocks.0", ["in.0", "kw.scale"]),
        ("blocks.0.norm", "at=enter", "blocks.0.norm", ["in.0"]),
        ("blocks.0.norm", "at=exit", "blocks.0.norm", ["out.0"]),
        ("layer.0", "at=exit", "blocks.0", ["out.hidden", "out.unused.0"]),
        ("layer.1", "at=enter", "blocks.1", ["in.0", "kw.scale"]),
        ("blocks.1.norm", "at=enter", "blocks.1.norm", ["in.0"]),
        ("blocks.1.norm", "at=exit", "blocks.1.norm", ["out.0"]),
        ("layer.1", "at=exit", "blocks.1", ["out.hidden", "out.unused.0"]),
    ]
    assert [row[:2] for row in forward[8:]] == [
        ("objective", "at=enter"),
        ("loss", "at=enter"),
        ("square", "at=probe"),
        ("loss", "at=exit"),
        ("objective", "at=exit"),
    ]
    assert {row[0] for row in told if row[4] == "recompute"} == {"layer.0", "blocks.0.norm"}
    backward = [(row[0], *row[6]) for row in told if row[4] == "backward"]
    assert backward[:2] == [("loss", "grad_out.0"), ("objective", "grad_out.0")]
    assert ("layer.1", "grad_in.0") in backward
    assert backward.index(("blocks.1.norm", "grad_out.0")) < backward.index(("blocks.1.norm", "grad_in.0"))


def test_events_belong_to_the_call_they_are_of(seen):
    events = seen.tables["events"]
    at = {seq: row for row, seq in enumerate(events["seq"])}
    for row, kind in enumerate(events["kind"]):
        if kind == "semantic" and not events["args"][row].startswith(("at=enter", "at=probe")):
            first = at[events["forward_seq"][row]]
            assert events["operator"][first] == events["operator"][row]
            assert events["args"][first].startswith(("at=enter", "at=probe"))


def test_generators_threads_and_exceptions(seen):
    told = {(row[0], row[1]): row for row in rows(seen)}
    assert told["parts", "at=exit"][6] == ["out.0"]
    assert told["fails", "at=exit;raised=ValueError"][6] == []
    assert told["of-thread", "at=probe"][6] == ["in.0"]


def test_the_manifest_says_what_the_orders_named(seen):
    patterns = seen.manifest["engines"]["semantic"]["patterns"]
    assert {pattern: facts["calls"] > 0 for pattern, facts in patterns.items()} == {
        "blocks.*=layer.*": True,
        "blocks.*.norm": True,
        "tests.support.functions:smooth=smooth": False,
        "absent.*": False,
        "json:nothing": False,
    }
    assert patterns["json:nothing"]["why"] == "json has no function nothing"
    assert seen.manifest["coverage"].get("gaps", {}) == {}


def test_both_engines_tell_the_same(by_engine):
    sides = [by_engine(engine) for engine in ("dispatch", "native")]
    assert rows(sides[0]) == rows(sides[1])
    digests = [
        [side.tables["slots"]["mix64"][row] for row, seq in enumerate(side.tables["slots"]["seq"]) if seq in named]
        for side in sides
        for named in [
            {seq for seq, kind in zip(side.tables["events"]["seq"], side.tables["events"]["kind"], strict=True) if kind == "semantic"}
        ]
    ]
    assert digests[0] == digests[1]


def test_a_wrapped_model_has_the_names_of_its_own():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with capturing("full", semantic=("blocks.*",)) as captured:
            DistributedDataParallel(Model())(torch.ones(2, 8)).sum().backward()
    finally:
        dist.destroy_process_group()
    told = [event.operator for event in captured.sink.events if event.kind == "semantic" and event.phase == "forward"]
    assert told == ["blocks.0", "blocks.0", "blocks.1", "blocks.1"]
    assert not captured.gaps


def test_a_program_without_names_has_no_trace_of_this():
    with capturing("full") as captured:
        Model()(torch.ones(2, 8)).sum().backward()
    assert not [event for event in captured.sink.events if event.kind == "semantic"]
    assert "semantic" not in captured.session.engines
    assert marks._observer is None


def inside(x, w):
    from opguard_core import boundary, probe

    with boundary("loss", x) as loss:
        hidden = probe("hidden", marks.named("mix", lambda a, b: a @ b)(x, w))
        return loss.returns((hidden.relu() * 2).sum())


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # of the compiler itself
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.full)])
def test_named_calls_survive_a_whole_graph_forward_and_backward_in_order(backend):
    """As a region that stays compiled; `tell` is what a session does with it."""
    told = []

    class Eager:
        """Nothing runs outside the graph."""

    x, w = torch.full((3, 3), 0.5), torch.eye(3, requires_grad=True)
    torch._dynamo.reset()
    inside(x, w).backward()
    plain, w.grad = w.grad, None
    compiled = torch.compile(inside, backend=backend, fullgraph=True)
    semantic_op.tell(lambda name, at, slot, tensor: told.append((name, at, slot, float(tensor.sum()))))
    marks.observe(Eager(), semantic_op.InGraph, torch.compiler.is_compiling)
    try:
        compiled(x, w).backward()
    finally:
        marks.observe(None)
        semantic_op.tell(None)
    assert told == [
        ("loss", "enter", "in.0", 4.5),
        ("mix", "enter", "in.0", 4.5),
        ("mix", "enter", "in.1", 3.0),
        ("mix", "exit", "out.0", 4.5),
        ("hidden", "probe", "in.0", 4.5),
        ("loss", "exit", "out.0", 9.0),
        ("loss", "grad", "grad_out.0", 1.0),
        ("hidden", "grad", "grad_in.0", 18.0),
        ("mix", "grad", "grad_out.0", 18.0),
        ("mix", "grad", "grad_in.1", 27.0),
    ]
    assert torch.equal(w.grad, plain)
    told.clear()
    w.grad = None
    compiled(x, w).backward()  # compiled anew, for nobody looks
    assert (told, torch.equal(w.grad, plain)) == ([], True)
