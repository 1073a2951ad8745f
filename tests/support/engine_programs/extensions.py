"""Operators that the program adds, scripted functions, higher-order operators."""

import sys

import torch
from torch import nn

from tests.support.engine_programs.catalogue import program

_LIBRARY = torch.library.Library("opguard_programs", "DEF")
_LIBRARY.define("scale(Tensor x, float factor=2.0, *, bool negate=False) -> Tensor")
_LIBRARY.define("bump_(Tensor(a!) x, Tensor by) -> Tensor(a!)")
_LIBRARY.define("undeclared(Tensor x) -> Tensor")
_LIBRARY.define("parts(Tensor[] xs, int? which=None) -> (Tensor, Tensor[])")
_LIBRARY.define("composite(Tensor x) -> Tensor")
_LIBRARY.define("nothing(Tensor x) -> ()")
_LIBRARY.define("fails(Tensor x) -> Tensor")
FRAMES = []


def _scale(x, factor=2.0, *, negate=False):
    FRAMES.append(names_of_frames())
    return -(x * factor) if negate else x * factor


def _bump(x, by):
    x.copy_(x + by)
    return x


def _undeclared(x):
    x.view(-1)[0] = 9
    return x.sum() * 1


def _fails(x):
    raise LookupError("the program's own")


def names_of_frames():
    """Functions on the stack, as the program can see them."""
    frame, names = sys._getframe(1), []
    while frame is not None:
        names.append((frame.f_code.co_filename, frame.f_code.co_name))
        frame = frame.f_back
    return names


_LIBRARY.impl("scale", _scale, "CompositeExplicitAutograd")
_LIBRARY.impl("bump_", _bump, "CPU")
_LIBRARY.impl("undeclared", _undeclared, "CPU")
_LIBRARY.impl("parts", lambda xs, which=None: (xs[which or 0] * 1, [x + 1 for x in xs]), "CPU")
_LIBRARY.impl("composite", lambda x: (x * 2).relu(), "CompositeImplicitAutograd")
_LIBRARY.impl("nothing", lambda x: None, "CPU")
_LIBRARY.impl("fails", _fails, "CPU")


@torch.library.custom_op("opguard_programs::squared", mutates_args=())
def squared(x: torch.Tensor) -> torch.Tensor:
    return x * x


def _save(ctx, inputs, output):
    ctx.save_for_backward(inputs[0])


squared.register_autograd(lambda ctx, gradient: gradient * 2 * ctx.saved_tensors[0], setup_context=_save)


@torch.library.custom_op("opguard_programs::halve", mutates_args=("x",))
def halve(x: torch.Tensor) -> None:
    x.div_(2)


@program
def operators_of_the_program():
    own = torch.ops.opguard_programs
    x = torch.randn(2, 3)
    made = own.scale(x), own.scale(x, 3.0, negate=True), own.parts([x, x + 1], 1), own.composite(x), own.nothing(x)
    own.bump_(x, torch.ones(2, 3))
    return made, x


@program
def operators_with_a_gradient():
    x = torch.randn(3, requires_grad=True)
    squared(squared(x)).sum().backward()
    net = nn.Linear(3, 3)
    squared(net(x)).sum().backward()
    y = torch.ones(3)
    halve(y)
    return x.grad, net.weight.grad, y


@program
def a_write_that_the_schema_does_not_declare():
    x = torch.ones(3)
    y = x * 2
    torch.ops.opguard_programs.undeclared(y)
    return y + 1


@program
def an_undeclared_write_to_a_parameter():
    net = nn.Linear(2, 2)
    net(torch.ones(1, 2)).sum().backward()
    with torch.no_grad():
        torch.ops.opguard_programs.undeclared(net.weight)
    return net.weight.detach() + 1


@program
def errors_in_operators_of_the_program():
    seen = []
    try:
        torch.ops.opguard_programs.parts([torch.ones(2)], 4)
    except IndexError as error:
        seen.append(str(error))
    return seen, torch.ones(2) + 1


@program
def errors_one_after_the_other():
    """So many that an engine does what it does from time to time while one is on its way."""
    x, seen = torch.ones(2), set()
    for _ in range(600):
        try:
            torch.ops.opguard_programs.fails(x)
        except LookupError as error:
            seen.add(repr(error))
    return sorted(seen), x + 1


@program
def scripted():
    @torch.jit.script
    def f(x: torch.Tensor):
        return x * 2 + torch.ones(3)

    @torch.jit.script
    def g(x: torch.Tensor):
        futures = [torch.jit.fork(torch.sin, x), torch.jit.fork(torch.cos, x)]
        return torch.jit.wait(futures[0]) + torch.jit.wait(futures[1])

    traced = torch.jit.trace(nn.Sequential(nn.Linear(2, 2), nn.Tanh()), torch.ones(1, 2))
    x = torch.randn(3, requires_grad=True)
    (f(x) * f(x)).sum().backward()
    return f(torch.ones(3)), traced(torch.randn(1, 2)), x.grad, g(torch.ones(2)).shape


@program
def cond():
    x = torch.randn(3)
    return torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x - 1, (x,)), torch.cond(
        torch.tensor(True), lambda x: x.sin(), lambda x: x.cos(), (x,)
    )


@program
def while_loop():
    from torch._higher_order_ops.while_loop import while_loop

    return while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2), (torch.tensor(0), torch.ones(2)))


@program(needs=("torch.nn.attention.flex_attention.flex_attention",))
def flex_attention():
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    q = torch.randn(1, 2, 8, 16, requires_grad=True)
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 8, 8, device="cpu")
    made = flex_attention(q, q, q) + flex_attention(q, q, q, score_mod=lambda s, b, h, i, j: s * 0.5, block_mask=mask)
    made.sum().backward()
    return made, q.grad


@program
def dlpack_and_interfaces():
    x = torch.ones(4)
    y = torch.from_dlpack(x)
    y.mul_(2)
    return x + 1, torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x)) + 1, torch.as_tensor([1.0, 2.0]) + 1
