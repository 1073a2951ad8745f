"""Autograd in all its forms: hooks, custom functions, graphs of gradients, forward mode, engines inside engines."""

import traceback

import torch
from torch import nn
from torch.autograd import forward_ad

from tests.support.engine_programs.catalogue import program


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * 3 * x * x


class Scale(torch.autograd.Function):
    """The newer style, with a vmap rule and a formula for forward mode."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x, factor):
        return x * factor

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.factor = inputs[1]

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.factor, None

    @staticmethod
    def jvp(ctx, tangent, _):
        return tangent * ctx.factor


@program
def functions_of_the_program():
    x = torch.randn(3, requires_grad=True)
    y = Cube.apply(x) + Scale.apply(x, 2.5)

    class Two(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a, b):
            ctx.mark_dirty(a)
            ctx.set_materialize_grads(False)
            return a.add_(b), b * 2

        @staticmethod
        def backward(ctx, one, other):
            return one, None if other is None else other * 2

    first, _ = Two.apply(x * 1, x)
    (y.sum() + first.sum()).backward()

    class Outer(nn.Module):
        def forward(self, x):
            return Cube.apply(x) * 2

    z = torch.randn(3, requires_grad=True)
    Outer()(z).sum().backward()
    return x.grad, z.grad


@program
def once_differentiable_and_detached():
    class Straight(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.round()

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, gradient):
            return gradient.clone()

    x = torch.randn(4, requires_grad=True)
    (Straight.apply(x) * x.detach()).sum().backward()
    return x.grad


@program
def gradients_of_gradients():
    x = torch.randn(3, requires_grad=True)
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    (first,) = torch.autograd.grad(net(x), x, create_graph=True)
    penalty = (first.norm() - 1) ** 2
    penalty.backward()
    y = Cube.apply(x).sum()
    (once,) = torch.autograd.grad(y, x, create_graph=True)
    (twice,) = torch.autograd.grad(once.sum(), x)
    return x.grad, twice, [p.grad for p in net.parameters()]


@program
def graphs_kept_and_partial():
    x = torch.randn(3, requires_grad=True)
    w = torch.randn(3, requires_grad=True)
    y = (x * w).sum()
    y.backward(retain_graph=True)
    y.backward(inputs=[x])
    torch.autograd.backward([x * 2, w * 3], [torch.ones(3), torch.ones(3)])
    grads = torch.autograd.grad((x.sin() * 2).sum(), [x, w], allow_unused=True)
    batch = torch.autograd.grad((x**2), x, torch.eye(3), is_grads_batched=True)
    return x.grad, w.grad, grads, batch


@program
def hooks():
    seen = []
    x = torch.randn(3, requires_grad=True)
    y = x * 2
    y.retain_grad()
    y.register_hook(lambda g: seen.append(g.clone()) or g * 2)
    x.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad * 1))
    y.grad_fn.register_prehook(lambda gs: tuple(g + 1 for g in gs))
    y.grad_fn.register_hook(lambda gi, go: seen.append(gi[0].sum()))
    torch.autograd.graph.register_multi_grad_hook([x, y], lambda gs: seen.append([g is not None for g in gs]))
    y.sum().backward()
    net = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    net.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    net[0].register_forward_hook(lambda module, args, out: out * 2)
    net[0].register_full_backward_hook(lambda module, gi, go: (gi[0] * 2,))
    net[1].register_full_backward_pre_hook(lambda module, go: (go[0] * 3,))
    net(x).sum().backward()
    return seen, x.grad, y.grad, [p.grad for p in net.parameters()]


@program
def saved_tensors_put_away():
    def pack(t):
        return t.double()

    def unpack(t):
        return t.float()

    x = torch.randn(3, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        (x.exp() * x.sin()).sum().backward()
    with torch.autograd.graph.save_on_cpu():
        (x.exp() * 2).sum().backward()
    return x.grad


@program
def engines_inside_engines():
    class Inner(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            with torch.enable_grad():
                y = x.detach().requires_grad_()
                (made,) = torch.autograd.grad((y**3).sum(), y)
            return made

        @staticmethod
        def backward(ctx, gradient):
            (x,) = ctx.saved_tensors
            with torch.enable_grad():
                y = x.detach().requires_grad_()
                (y**3).sum().backward()
            return gradient * y.grad

    x = torch.randn(3, requires_grad=True)
    Inner.apply(Inner.apply(x)).sum().backward()
    return x.grad


@program(full=True)
def engines_deep_inside_engines():
    """Deeper than torch lets one thread go: the inner calls run on threads of a pool that inherit the thread's state."""

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
                    Deep.apply(y * 1.5, ctx.depth - 1).sum().backward()
                return gradient + y.grad, None
            return gradient, None

    x = torch.ones(2, requires_grad=True)
    Deep.apply(x, 80).sum().backward()
    return x.grad


@program
def nodes_that_modes_change():
    x = torch.randn(5, 5, requires_grad=True)
    value = torch.tensor(2.0, requires_grad=True)
    y = x.masked_fill(x > 0, value) * torch.randn(5, 5)
    (y.prod(0).sum() + x.prod()).backward()
    return x.grad, value.grad


@program
def nodes_that_modes_change_with_a_graph_of_the_gradient():
    x = torch.randn(4, requires_grad=True)
    value = torch.tensor(2.0, requires_grad=True)
    y = (x.masked_fill(x > 0, value) ** 2).sum() + x.prod()
    (gradient,) = torch.autograd.grad(y, x, create_graph=True)
    gradient.square().sum().backward()
    return x.grad, value.grad


@program
def forward_mode():
    x, tangent = torch.randn(3), torch.randn(3)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, tangent)
        y = (dual.sin() * dual).cumsum(0)
        net = nn.Linear(3, 2)
        z = net(dual)
        seen = [*forward_ad.unpack_dual(y), *forward_ad.unpack_dual(z), *forward_ad.unpack_dual(Scale.apply(dual, 3.0))]
    return seen


@program
def gradients_on_and_off():
    x = torch.randn(3, requires_grad=True)
    with torch.no_grad():
        y = x * 2
        with torch.enable_grad():
            z = x * 3
    with torch.inference_mode():
        w = x * 4
        with torch.inference_mode(False):
            v = x * 5
    with torch.set_grad_enabled(False):
        u = x.exp()
    (z.sum() + v.sum()).backward()
    return x.grad, y, w + 1, u, w.clone()


@program
def errors_in_backward():
    class Bad(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return torch.ones(2) + torch.ones(3)

    said = []
    x = torch.randn(3, requires_grad=True)
    try:
        Bad.apply(x).sum().backward()
    except RuntimeError:
        said.append(traceback.format_exc())
    y = (x * 2).sum()
    y.backward()
    try:
        y.backward()
        (x * x).sum().backward()
        (x.exp().add_(1)).sum().backward()
    except RuntimeError as error:
        said.append(str(error))
    return said, x.grad


@program
def anomalies():
    said = ""
    with torch.autograd.detect_anomaly(check_nan=True):
        x = torch.zeros(3, requires_grad=True)
        try:
            (x / x).sum().backward()
        except RuntimeError as error:
            said = str(error)
    return said


@program
def complex_numbers():
    x = torch.randn(3, dtype=torch.complex64, requires_grad=True)
    y = x.conj() * x.imag.neg() + torch.view_as_complex(torch.randn(3, 2))
    torch.view_as_real(y).square().sum().backward()
    z = x.detach()
    lazily = z.conj()
    negative = z.conj().imag
    return (
        x.grad,
        lazily.resolve_conj() + 1,
        negative.resolve_neg() + 1,
        torch.fft.rfft(torch.randn(8)),
        lazily @ z,
        z[None].mH,
        lazily.clone(),
        negative.sum(),
    )


@program
def jacobians():
    net = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    x = torch.randn(3)
    return torch.autograd.functional.jacobian(net, x), torch.autograd.functional.hessian(lambda y: net(y).square().sum(), x)
