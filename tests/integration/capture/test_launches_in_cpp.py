# ruff: noqa: E402  (torch may be missing)
"""Launches of generated kernels that C++ observes: told as Python tells them, at the cost of no Python, and the program as it is."""

import traceback

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from opguard_core.engines import compiled
from tests.support.engine_programs.catalogue import Program
from tests.support.engine_streams import differences, outcome
from tests.support.launched import launches, loaded
from tests.support.native import native_or_skip


@pytest.fixture(scope="module", autouse=True)
def native():
    return native_or_skip()


class Both(torch.autograd.Function):
    """A compiled forward and a compiled backward."""

    @staticmethod
    def forward(ctx, module, x, weight):
        ctx.module = module
        out, wide = module.call([x, weight])
        ctx.save_for_backward(x, weight, wide)
        return out

    @staticmethod
    def backward(ctx, gradient):
        x, weight, _ = ctx.saved_tensors
        first, _ = ctx.module.call([gradient.contiguous(), weight])
        return None, None, first + ctx.module.again(x)


def training(module, steps=3):
    torch.manual_seed(3)
    weight = torch.nn.Parameter(torch.randn(4, 4))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(steps):
        Both.apply(module, torch.randn(4, 4), weight).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return weight.detach()


def in_place(module):
    x = torch.randn(4, 4)
    rows = [module.tuned(x) for _ in range(3)]
    with torch.no_grad():
        rows += module.call([x[:, :], x.T])
    return x, rows


def the_same_bytes(module):
    """A buffer that is used again, and filled with what it held: written all the same."""
    x = torch.ones(4, 4)
    return [module.again(x) for _ in range(3)] + [module.zeros() for _ in range(2)] + [module.call([x, x])[0]]


def undeclared(module):
    x = torch.nn.Parameter(torch.randn(4, 4))
    with torch.no_grad():
        results = [module.sneaks(torch.randn(4, 4)) for _ in range(3)] + [module.sneaks(x)]
    return results, x.detach()


def failing(module):
    """Before it has written, and after; the second of each is observed in C++."""
    texts, x = [], torch.zeros(4, 4)
    for mistake in (1.0, 1.0, None, "none", 1.0):
        try:
            module.fails(x, torch.ones(4, 4), mistake)
        except (ArithmeticError, TypeError) as error:
            texts.append([entry.name for entry in traceback.extract_tb(error.__traceback__)])
    return texts, x


def odd_arguments(module):
    whole, one = torch.randn(4, 4), torch.randn(4, 4)
    numbers = (3, -4, 2**70, 1.5, float("inf"), -0.0, True, None, "a'b", "x" * 300, (1, 2.0), torch.float32, object())
    results = [module.odd(whole, *numbers) for _ in range(2)]
    views = (whole.T, whole.expand(4, 4), torch.nn.Parameter(whole), one[:0].new_ones(4, 4), torch.complex(whole, one).conj().real)
    results += [module.odd(view.detach(), 1) for view in views]
    return [result.detach() for result in results]


PROGRAMS = (training, in_place, the_same_bytes, undeclared, failing, odd_arguments)


def observed(program, folder, monkeypatch, in_cpp, mode, steps=None):
    seen = {}

    def run():
        with loaded(folder.parent) as module:
            returned = program(module)
            seen.update(python=launches().num_python, all=launches().num_seen)
        return returned

    with monkeypatch.context() as patch:
        if not in_cpp:
            patch.setattr(compiled, "_launches_of", lambda context, module: None)
        return outcome(Program("test", run, steps=steps), "native", folder, mode), seen


CASES = [(program, mode, None) for mode in ("full", "verify") for program in PROGRAMS]
CASES += [(training, "full", (2, 3)), (training, "full", (1, 2)), (in_place, "verify", (1, 2)), (failing, "full", (1, 2))]
CASES += [pytest.param(program, "trusted", None, marks=pytest.mark.full) for program in PROGRAMS]


@pytest.mark.parametrize(("program", "mode", "steps"), CASES, ids=lambda value: getattr(value, "__name__", str(value)))
def test_both_tell_the_same(program, mode, steps, tmp_path, monkeypatch):
    with loaded(tmp_path) as module:
        bare = outcome(Program("test", lambda: program(module)), None, tmp_path / "bare")
    # From one line: stacks are compared, too.
    (python, all_of_them), (cpp, told) = [
        observed(program, tmp_path / name, monkeypatch, name == "cpp", mode, steps) for name in ("python", "cpp")
    ]
    for side in (python, cpp):
        # Python that calls a method of Python's stands behind the call's instruction by its inline cache, once it has warmed up.
        del side.tables["frames"]["lasti"]
    assert python.result == cpp.result == bare.result
    assert not differences(python, cpp)
    assert cpp.manifest["engines"].get("outside") == python.manifest["engines"].get("outside")
    assert told["all"] == all_of_them["all"] and told["python"] < told["all"] and all_of_them["python"] == 0
    assert any(operator.startswith("inductor.") for operator in cpp.tables["events"]["operator"]) or steps


def test_launches_of_a_warm_program_are_none_of_pythons(tmp_path):
    """Nor is the memory that is handed out for them: what Python is entered for is new places alone."""

    def run():
        with loaded(tmp_path) as module:
            x, made = torch.randn(4, 4), []
            for step in range(4):
                if step == 2:
                    made += [launches().num_python, launches().num_seen, Unwritten.calls]
                module.call([x, x])
                module.again(x)
                module.tuned(x)
            return made, [launches().num_python, launches().num_seen, Unwritten.calls]

    class Unwritten:
        calls = 0

    real = compiled.Watch._never_written

    def counted(self, tensor):
        Unwritten.calls += 1
        real(self, tensor)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled.Watch, "_never_written", counted)
        before, after = outcome(Program("test", run), "native", tmp_path / "run", "full").result
    assert before[0] == after[0] == 9, "each place of a launch is Python's once"
    assert after[1] == 36 and before[1] == 18
    assert before[2] == after[2] == 0


def test_an_error_of_a_kernel_shows_no_frame_of_ours_and_its_event_says_so(tmp_path):
    def run():
        with loaded(tmp_path) as module:
            return failing(module)

    native = outcome(Program("test", run), "native", tmp_path / "run", "full")
    names = native.result[0]
    assert names == [["failing", "fails", "_fails"]] * 2 + [["failing", "fails", "_scale"]] * 2 + [["failing", "fails", "_fails"]]
    events, slots = native.tables["events"], native.tables["slots"]
    raised = [seq for seq, text in zip(events["seq"], events["args"], strict=True) if "raised=" in text]
    told = [(events["operator"][seq].removeprefix("inductor.cpp_"), events["args"][seq].rpartition(";")[2]) for seq in raised]
    assert told == [
        ("fails", "raised=ArithmeticError"),
        ("fails", "raised=ArithmeticError"),
        ("scale", "raised=TypeError"),
        ("scale", "raised=TypeError"),
        ("fails", "raised=ArithmeticError"),
    ]
    made = [[path for seq, path in zip(slots["seq"], slots["slot"], strict=True) if seq == one] for one in raised]
    assert made == [["in.0", "in.1", "mut.0"]] * 2 + [["in.0"]] * 2 + [["in.0", "in.1", "mut.0"]]


def test_the_same_bytes_again_are_a_write(tmp_path):
    def run():
        with loaded(tmp_path) as module:
            return the_same_bytes(module)

    native = outcome(Program("test", run), "native", tmp_path / "run", "full")
    operators, slots = native.tables["events"]["operator"], native.tables["slots"]
    scaled = [seq for seq, operator in enumerate(operators) if operator == "inductor.cpp_scale"]
    made = [path for seq, path in zip(slots["seq"], slots["slot"], strict=True) if seq in scaled and path.startswith("out.")]
    assert made == ["out.1"] * len(scaled)


def test_a_write_that_the_text_denies_is_told_in_mode_verify(tmp_path):
    def run():
        with loaded(tmp_path) as module:
            return undeclared(module)

    verify, full = (outcome(Program("test", run), "native", tmp_path / mode, mode) for mode in ("verify", "full"))
    assert verify.manifest["coverage"]["undeclared_writes"] == 4 and "undeclared_writes" not in full.manifest["coverage"]
    assert verify.tables["slots"]["slot"].count("mut.0") == 4 and "mut.0" not in full.tables["slots"]["slot"]
