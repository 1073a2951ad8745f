# ruff: noqa: E402  (torch may be missing)
"""Code that stays compiled while it is observed: each generated kernel is a boundary, and the program is the one that runs without us.

Inductor's C++ kernels take seconds each to build, so few programs are compiled, into a cache of their own, and each is asked many things.
"""

import json
import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.timeout(900), pytest.mark.filterwarnings("ignore")]  # torch's compiler warns of its own code

from torch import nn
from torch.utils.checkpoint import checkpoint

from opguard_core.certify.compare import compare
from opguard_core.contract.compare import compare as compare_contracts
from opguard_core.engines import compiled, native_build
from opguard_core.trace.reader import Run
from tests.support.compiled_side import KERNEL, Side
from tests.support.engine_programs.catalogue import Program
from tests.support.engine_streams import ROOT, differences, outcome


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    """What Inductor builds here is built here, and what we keep of it is ours."""
    folder = tmp_path_factory.mktemp("inductor")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder))
        yield folder
        torch._dynamo.reset()
        torch._inductor.codecache.PyCodeCache.cache_clear()


def right():
    def region(x, weight):
        hidden = torch.tanh(x @ weight)
        hidden = hidden * 1.25
        hidden = hidden + 0.5
        return hidden @ weight

    return region


def wrong():
    def region(x, weight):
        hidden = torch.tanh(x @ weight)
        hidden = hidden * 1.26
        hidden = hidden + 0.5
        return hidden @ weight

    return region


def training(made, steps=2):
    def run():
        region, weight = torch.compile(made(), fullgraph=True), nn.Parameter(torch.randn(16, 16))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        for _ in range(steps):
            region(torch.randn(8, 16), weight).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return weight.detach()

    return run


@pytest.fixture(scope="module")
def engines():
    return ["dispatch"] if isinstance(native_build.load(), native_build.Missing) else ["dispatch", "native"]


def told_by_both(run, folder, mode):
    """Two sides under the native engine: every launch left to Python, and observed in C++ where it can be. And how they differ."""
    sides = []
    for name in ("python", "cpp"):  # from one line: stacks are compared, too
        with pytest.MonkeyPatch.context() as patch:
            if name == "python":
                patch.setattr(compiled, "_launches_of", lambda context, module: None)
            sides.append(Side(run, folder / name, "native", mode))
        # A frame's instruction differs where warm code called Python.
        del sides[-1].outcome.tables["frames"]["lasti"]
    return *sides, differences(sides[0].outcome, sides[1].outcome)


@pytest.fixture(scope="module")
def sides(cache, engines, tmp_path_factory):
    """The right program without us first, so that we find a cache that we did not fill; the wrong one under us alone."""
    folder = tmp_path_factory.mktemp("sides")
    found = {"bare": Side(training(right), folder / "bare", None)}
    found |= {engine: Side(training(right), folder / engine, engine) for engine in engines}
    found["wrong"] = Side(training(wrong), folder / "wrong", "dispatch")
    return found


def test_the_program_is_the_one_that_runs_without_us(sides, engines):
    for engine in engines:
        assert sides[engine].program == sides["bare"].program, engine
    assert sides["bare"].kernels and len(sides["bare"].codes) == 2


def test_each_kernel_and_each_library_call_is_a_boundary_in_its_phase(sides, engines):
    for engine in engines:
        forward, backward = (sides[engine].operators(phase) for phase in ("forward", "backward"))
        assert forward.count("aten.mm.out") == 4 and sum(one.startswith(KERNEL) for one in forward) == 2, forward
        assert sum(one.startswith(KERNEL) for one in backward) >= 2 and "aten.mm.out" in backward, backward
        assert not any(one.startswith("aten.tanh") for one in forward)
        assert not sides[engine].gaps


def test_both_engines_tell_the_same(sides, engines):
    if len(engines) == 2:
        assert not differences(sides["dispatch"].outcome, sides["native"].outcome, in_place=True)


def test_launches_seen_in_cpp_tell_what_python_tells_of_them(sides, engines, tmp_path):
    if len(engines) != 2:
        pytest.skip("no native engine here")
    for mode in ("full", "verify"):
        python, cpp, found = told_by_both(training(right), tmp_path / mode, mode)
        assert not found
        assert python.program == cpp.program and python.compiled == cpp.compiled


def test_the_manifest_says_what_was_compiled_and_how_it_was_seen(sides):
    told = sides["dispatch"].compiled
    assert told["level"] == "kernels" and "stays compiled" in told["why"]
    (region,) = told["regions"]
    assert region["region"] == "region#0" and region["place"].endswith(f"test_compiled.py:{right.__code__.co_firstlineno + 2}")
    assert [part["part"] for part in region["parts"]] == ["forward", "backward"]
    assert (
        told["launches"]
        == sum(part["launches"] for part in region["parts"])
        == sum(operator.startswith(KERNEL) for operator in sides["dispatch"].events["operator"])
    )


def test_sides_that_compiled_to_other_code_are_told_so(sides, engines):
    contracts = {name: side.outcome.manifest["contract"] for name, side in sides.items() if name != "bare"}
    for engine in engines:
        assert contracts[engine]["compile.level"] == "kernels"
        assert contracts[engine]["compile.code"] == contracts["dispatch"]["compile.code"]
    (found,) = [one for one in compare_contracts(contracts["dispatch"], contracts["wrong"]) if one.key.startswith("compile.")]
    assert (found.key, found.severity, found.conflicts) == ("compile.code", "arithmetic", False)


def test_a_constant_inside_a_region_is_found_at_its_kernel_and_line(sides):
    verdict = compare(Run.open(sides["dispatch"].folder), Run.open(sides["wrong"].folder))
    pivot = verdict.pivot
    assert verdict.verdict == "diverged", verdict.reasons
    assert (pivot.phase, pivot.step) == ("forward", 0)
    assert pivot.operator.startswith(KERNEL) and pivot.slot.startswith(("out.", "mut."))
    assert (pivot.reference.text, pivot.suspect.text) == ("hidden = hidden * 1.25", "hidden = hidden * 1.26")
    assert pivot.reference.line == right.__code__.co_firstlineno + 3
    # All that was fused is told, after the generated code that launched it.
    assert [place.text.partition(" = ")[2] for place in pivot.stack.suspect[-3:]] == [
        "torch.tanh(x @ weight)",
        "hidden * 1.26",
        "hidden + 0.5",
    ]
    assert pivot.stack.suspect[-4].file.startswith("inductor/")


def test_regions_run_eagerly_if_asked_to(tmp_path):
    side = Side(training(right, steps=1), tmp_path / "run", "dispatch", compiled="eager")
    assert "aten.tanh.default" in side.operators("forward") and not side.codes
    assert side.compiled == {"active": False, "level": "eager", "why": "asked for"}
    assert side.outcome.manifest["coverage"]["compiled_regions_run_eagerly"] == 1
    assert side.outcome.manifest["contract"]["compile.level"] == "eager"


def test_graphs_that_run_as_they_are_tell_the_lines_they_were_traced_from(tmp_path):
    def run():
        return (
            torch.compile(right(), backend="aot_eager", fullgraph=True)(torch.ones(8, 16), torch.ones(16, 16, requires_grad=True))
            .sum()
            .backward()
        )

    side = Side(run, tmp_path / "run", "dispatch")
    texts, lines = side.outcome.tables["frames"]["text"], {}
    for operator, user in zip(side.events["operator"], side.events["user_frame"], strict=True):
        lines.setdefault(operator, None if user is None else texts[user])
    assert lines["aten.add.Tensor"] == "hidden = hidden + 0.5" and lines["aten.tanh_backward.default"] == "hidden = torch.tanh(x @ weight)"


# What else a program can do with regions; both engines, with results, code, graphs and kernels as without us.


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(7)
        self.up, self.down, self.norm = nn.Linear(16, 16), nn.Linear(16, 16), nn.LayerNorm(16)

    def forward(self, x):
        return self.down(self.norm(torch.tanh(self.up(x)) * 1.25)).relu()


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx, gradient):
        return 3 * gradient * ctx.saved_tensors[0] ** 2


def steps(function, net, sizes=(8, 8, 8)):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    losses = []
    for number, size in enumerate(sizes):
        torch.manual_seed(number)
        loss = function(torch.randn(size, 16)).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return losses, [parameter.detach().clone() for parameter in net.parameters()]


def compiled_in_place():
    net = Net()
    net.compile(fullgraph=True)
    return steps(net, net)


def hooks_inside():
    net = Net()
    net.up.register_forward_hook(lambda module, args, result: result * 2)
    return steps(torch.compile(net, fullgraph=True), net)


def broken_graphs():
    net = Net()

    def region(x):
        y = net.up(x).sin()
        print(end="")
        return net.down(y + 1 if y.sum() > 0 else y)

    return steps(torch.compile(region), net)


def sizes_that_vary():
    net = Net()
    return steps(torch.compile(net, dynamic=True), net, sizes=(8, 12, 5))


def compiled_again():
    net = Net()
    return steps(torch.compile(net, dynamic=False), net, sizes=(8, 12))


def checkpoint_inside():
    net = Net()
    return steps(torch.compile(lambda x: checkpoint(net, x, use_reentrant=False), fullgraph=True), net)


def function_inside():
    net = Net()
    return steps(torch.compile(lambda x: Cube.apply(net.up(x)), fullgraph=True), net)


def graphs_on_a_cpu():
    net = Net()
    return steps(torch.compile(net, mode="reduce-overhead"), net)


def one_cpp_function():
    net = Net()
    return steps(torch.compile(net, options={"cpp_wrapper": True}), net)


def optimizer_step():
    net = Net()
    optimizer = torch.optim.Adam(net.parameters())
    step = torch.compile(lambda: optimizer.step())
    for _ in range(2):
        net(torch.randn(8, 16)).sum().backward()
        step()
        optimizer.zero_grad()
    return [parameter.detach().clone() for parameter in net.parameters()]


def dropout_and_views():
    net = nn.Sequential(Net(), nn.Dropout(0.5), nn.Unflatten(1, (4, 4)), nn.Flatten(2), nn.Linear(4, 4), nn.Dropout(0.1))
    return steps(torch.compile(net, fullgraph=True), net)


def writes_into_its_input():
    @torch.compile(fullgraph=True)
    def region(x):
        x.add_(1)
        x[:, 2:4] = 3
        return torch.cat([x, x * 2], 1).index_add_(0, torch.arange(2), torch.ones(2, 16))

    x = torch.arange(32.0).reshape(4, 8)
    return region(x), x


PROGRAMS = (
    compiled_in_place,
    hooks_inside,
    broken_graphs,
    sizes_that_vary,
    compiled_again,
    checkpoint_inside,
    function_inside,
    graphs_on_a_cpu,
    one_cpp_function,
    optimizer_step,
    dropout_and_views,
    writes_into_its_input,
)


@pytest.mark.full
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_program_stays_what_it_is(program, engines, tmp_path):
    bare = Side(program, tmp_path / "bare", None)
    observed = [Side(program, tmp_path / engine, engine, mode="verify") for engine in engines]
    for side in observed:
        assert side.program == bare.program
        assert side.compiled["launches"] and not side.gaps
        assert side.compiled["launches"] == sum(operator.startswith("inductor.") for operator in side.events["operator"])
    if len(observed) == 2:
        assert not differences(observed[0].outcome, observed[1].outcome, in_place=True)
        python, cpp, found = told_by_both(program, tmp_path, "verify")
        assert python.program == cpp.program == bare.program and not found


@pytest.mark.full
def test_a_region_compiled_before_the_capture_is_observed(tmp_path):
    net = Net()
    region = torch.compile(net, fullgraph=True)
    with torch.no_grad():
        region(torch.ones(4, 16))
        side = Side.__new__(Side)  # nothing is reset in between
        side.outcome = outcome(Program("test", lambda: region(torch.ones(4, 16))), "dispatch", tmp_path / "run", "full")
    assert any(operator.startswith(KERNEL) for operator in side.outcome.tables["events"]["operator"])
    assert side.compiled["launches"]


@pytest.mark.full
def test_probes_tell_of_values_in_memory_forward_and_backward_in_order(sides, tmp_path):
    side = Side(training(right), tmp_path / "run", "dispatch", compiled="probes")
    named = [name for name, kind in zip(side.events["operator"], side.events["kind"], strict=True) if kind == "semantic"]
    step = named[: len(named) // 2]
    assert named == step * 2, "each step tells the same, in the same order"
    forward = [name for name in step if "/backward/" not in name]
    assert step[: len(forward)] == forward and len(forward) < len(step)
    assert {"region#0/mm", "region#0/backward/mm"} <= {name.removesuffix("_default").rpartition("_")[0] or name for name in step} | set(
        step
    )
    assert side.outcome.result == sides["bare"].outcome.result
    told = side.compiled
    assert told["level"] == "probes" and "not the one" in told["artefact"] and told["probes"] == len(step)
    assert side.codes != sides["bare"].codes and side.outcome.manifest["contract"]["compile.level"] == "probes"
    # The user's own code is not taken from what we compiled.
    assert Side(training(right), tmp_path / "bare", None).program == sides["bare"].program


@pytest.mark.full
def test_a_comparison_names_the_line_in_a_region(cache, tmp_path):
    """Two folders, two processes, one cache of Inductor's."""
    text = "\n".join(
        (
            "import torch",
            "def region(x, weight):",
            "    hidden = torch.tanh(x @ weight)",
            "    hidden = hidden * 1.25",
            "    return (hidden @ weight).sum()",
            "torch.manual_seed(0)",
            "weight = torch.nn.Parameter(torch.randn(16, 16))",
            "optimizer = torch.optim.SGD([weight], lr=0.1)",
            "torch.compile(region, fullgraph=True)(torch.randn(8, 16), weight).backward()",
            "optimizer.step()",
        )
    )
    for name, change in (("reference", text), ("same", text), ("suspect", text.replace("1.25", "1.26"))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.py").write_text(change)
    env = {**os.environ, "OMP_NUM_THREADS": "1", "XDG_STATE_HOME": str(tmp_path / "state"), "PYTHONPATH": str(ROOT)}
    answers = {}
    for suspect in ("same", "suspect"):
        words = [sys.executable, "-m", "opguard_harness", "compare", "--reference", "reference", "--suspect", suspect, "--json", "--"]
        done = subprocess.run([*words, sys.executable, "train.py"], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
        answers[suspect] = json.loads(done.stdout)
    assert answers["same"]["verdict"] == "identical" and not [
        one for one in answers["same"]["contract"] if one["key"].startswith("compile.")
    ]
    pivot = answers["suspect"]["pivot"]
    assert pivot["operator"].startswith(KERNEL)
    assert [(pivot[side]["file"], pivot[side]["line"]) for side in ("reference", "suspect")] == [("train.py", 4)] * 2
