"""Regions handed to torch.compile, which runs them eagerly while an engine looks."""

import torch
from torch import nn

from tests.support.engine_programs.catalogue import program


@program
def compiled_training():
    torch._dynamo.reset()
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    compiled = torch.compile(net, backend="eager", fullgraph=True)
    optimizer = torch.optim.AdamW(net.parameters())
    losses = []
    for _ in range(3):
        loss = compiled(torch.randn(2, 4)).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return losses


@program(full=True)
def compiled_with_breaks():
    torch._dynamo.reset()

    @torch.compile(backend="aot_eager")
    def f(x):
        y = x.sin() * 2
        if y.sum() > 0:
            y = y + 1
        print(end="")
        return y.cos()

    x = torch.randn(3, requires_grad=True)
    f(x).sum().backward()
    return x.grad, f(torch.ones(3))


@program
def regions_left_out_of_compilation():
    torch._dynamo.reset()

    @torch.compiler.disable
    def inner(x):
        return x * 3

    @torch.compile(backend="eager")
    def outer(x):
        return inner(x + 1) - 1

    return outer(torch.ones(2)), torch.compiler.is_compiling()
