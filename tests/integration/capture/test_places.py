# ruff: noqa: E402  (torch may be missing)
"""Every event points at the expression that ran, and leaves our own frames out."""

import sys
import textwrap

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from tests.support.capturing import capturing

exact = pytest.mark.skipif(sys.version_info < (3, 11), reason="columns need CPython 3.11")


@exact
def test_two_operators_on_one_line_have_their_own_expressions():
    x, y = torch.randn(3, 3), torch.randn(3, 3)
    with capturing() as seen:
        z = (x @ y) + torch.exp(x - y)  # noqa: F841
    assert [seen.text(event) for event in seen.events] == ["x @ y", "x - y", "torch.exp(x - y)", "(x @ y) + torch.exp(x - y)"]
    assert {seen.frame(event).statement for event in seen.events} == {"z = (x @ y) + torch.exp(x - y)"}


def test_a_place_says_file_line_function_and_source():
    with capturing() as seen:
        torch.ones(2) + 1
    frame = seen.frame(seen.of("add"))
    assert (frame.file, frame.category) == ("tests/integration/capture/test_places.py", "user")
    assert frame.function == "test_a_place_says_file_line_function_and_source"
    assert "torch.ones(2) + 1" in seen.sink.sources[frame.source].splitlines()[frame.line - 1]


@exact
def test_a_loop_step_is_clipped_to_the_header_of_the_loop():
    with capturing() as seen:
        for row in torch.utils.data.DataLoader(
            list(range(4)),
            batch_size=2,
        ):
            row + 1
    fetched = seen.of("opguard.data.fetch")
    frame = seen.frame(fetched)
    assert frame.text.startswith("for row in torch.utils.data.DataLoader(")
    assert frame.text.endswith(")")
    assert "row + 1" not in frame.text + frame.statement


@exact
def test_statements_over_several_lines_are_whole_and_dedented(tmp_path):
    path = tmp_path / "prog.py"
    path.write_text(
        textwrap.dedent("""
            import torch
            def f(x):
                if True:
                    return torch.stack(
                        [x,
                         x * 2],
                    )
        """)
    )
    namespace = {"__name__": "prog"}
    exec(compile(path.read_text(), str(path), "exec"), namespace)
    with capturing(user_root=tmp_path) as seen:
        namespace["f"](torch.ones(2))
    frame = seen.frame(seen.of("mul"))
    assert (frame.file, frame.text) == ("prog.py", "x * 2")
    assert frame.statement == "return torch.stack(\n    [x,\n     x * 2],\n)"


def test_library_frames_are_named_by_distribution_and_the_user_frame_is_kept():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
    optimizer.param_groups[0]["params"][0].grad = torch.ones(2)
    with capturing() as seen:
        optimizer.step()
    event = next(event for event in seen.events if "add_" in event.operator)
    assert event.library_frame is not None
    library = seen.sink.frames[event.library_frame]
    assert (library.file, library.category) == ("torch/optim/sgd.py", "torch")
    assert seen.frame(event).file == "tests/integration/capture/test_places.py"


def test_no_frame_of_ours_is_recorded_anywhere():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()  # once anything was compiled in this process, torch makes an optimizer's state below a frame of its compiler
    with capturing() as seen:
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    assert not [frame for frame in seen.sink.frames if "opguard" in frame.file or "importlib" in frame.file]
    assert not [frame for frame in seen.sink.frames if frame.file == "torch/_dynamo/eval_frame.py"]


def test_stacks_and_frames_are_interned():
    def f(x):
        return x + 1

    x = torch.ones(2)
    with capturing() as seen:
        for _ in range(20):
            f(x)
    assert len({event.stack for event in seen.events}) == 1
    assert len(seen.sink.frames) < 80


def test_code_without_a_file_still_has_a_place():
    with capturing() as seen:
        exec("torch.ones(2) + 1", {"torch": torch, "__name__": "x"})
    frame = seen.frame(seen.of("add"))
    assert (frame.file, frame.category, frame.line, frame.source) == ("<string>", "user", 1, "")


@exact
def test_what_threads_of_the_autograd_engine_run_is_placed_where_backward_was_called():
    class Deep(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, depth):
            ctx.depth = depth
            return x * 1

        @staticmethod
        def backward(ctx, gradient):
            if ctx.depth:
                with torch.enable_grad():
                    y = gradient.detach().requires_grad_()
                    below = Deep.apply(y * 1.5, ctx.depth - 1).sum()
                    below.backward()
            return gradient, None

    x = torch.ones(2, requires_grad=True)
    with capturing() as seen:
        y = Deep.apply(x, 70).sum()
        y.backward()
    # Some 60 engines deep torch goes on on another thread, which no frame of the program leads to.
    placed = [(seen.text(event), seen.sink.stacks[event.stack]) for event in seen.events if event.phase == "backward"]
    assert {text for text, _ in placed} == {"y.backward()", "below.backward()", "x * 1"}
    depths = [sum(seen.sink.frames[frame].function.endswith("Deep.backward") for frame in stack) for _, stack in placed]
    assert depths.count(max(depths)) > 2, "the innermost call of the first thread: its seed, and what the other thread ran for it"
