"""torch.func, functorch, functionalisation, symbolic tracing."""

import torch
from torch import nn

from tests.support.engine_programs.catalogue import program


@program
def vmap():
    f = torch.func.vmap(lambda x, y: (x * y).sum() + x.sin().prod(), in_dims=(0, None))
    g = torch.func.vmap(torch.func.vmap(torch.dot))
    return f(torch.randn(3, 4), torch.randn(4)), g(torch.randn(2, 3, 4), torch.randn(2, 3, 4))


@program
def vmap_of_random_numbers():
    return torch.func.vmap(lambda x: x + torch.randn(2), randomness="different")(torch.zeros(3, 2)), torch.func.vmap(
        lambda x: torch.nn.functional.dropout(x), randomness="same"
    )(torch.ones(3, 2))


@program
def grad():
    def loss(x, y):
        return (x**2 * y).sum()

    gradient, value = torch.func.grad_and_value(loss)(torch.randn(3), torch.randn(3))
    second = torch.func.grad(lambda x: torch.func.grad(lambda z: (z**3).sum())(x).sum())(torch.randn(3))
    return gradient, value, second, torch.func.vmap(torch.func.grad(loss))(torch.randn(4, 3), torch.randn(4, 3))


@program
def jvp_vjp_and_jacobians():
    x = torch.randn(3)
    out, tangent = torch.func.jvp(torch.sin, (x,), (torch.ones(3),))
    made, back = torch.func.vjp(lambda z: z.exp() * 2, x)
    return (
        out,
        tangent,
        made,
        back(torch.ones(3)),
        torch.func.jacrev(torch.tanh)(x),
        torch.func.jacfwd(torch.tanh)(x),
        torch.func.hessian(lambda z: (z**3).sum())(x),
    )


@program
def gradients_per_sample():
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    parameters = {name: p.detach() for name, p in net.named_parameters()}

    def loss(parameters, x):
        return torch.func.functional_call(net, parameters, (x.unsqueeze(0),)).square().sum()

    return torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, torch.randn(5, 3))


@program
def an_ensemble():
    nets = [nn.Linear(3, 2) for _ in range(3)]
    parameters, buffers = torch.func.stack_module_state(nets)
    return torch.func.vmap(lambda p, b, x: torch.func.functional_call(nets[0], (p, b), (x,)), in_dims=(0, 0, None))(
        parameters, buffers, torch.randn(4, 3)
    )


@program
def functionalize():
    def f(x):
        y = x.clone()
        y[0].add_(1)
        return y.view(-1)[1:].mul_(2)

    return torch.func.functionalize(f)(torch.randn(2, 2)), torch.func.functionalize(torch.func.vmap(lambda x: x.add(1).relu_()))(
        torch.randn(2, 2)
    )


@program
def traced_by_fx():
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    return torch.fx.symbolic_trace(net)(torch.randn(1, 2))


@program
def traced_by_make_fx():
    from torch.fx.experimental.proxy_tensor import make_fx

    return make_fx(lambda x: x.sin() + 1)(torch.ones(3))(torch.randn(3))


@program(full=True)
def exported():
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    return torch.export.export(net, (torch.ones(1, 2),)).module()(torch.randn(1, 2))
