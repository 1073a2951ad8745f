"""Native functions that the dispatcher does not see: what they read, write and return, alone and around operators of torch."""

import contextlib
import ctypes

import torch

from tests.support.engine_programs.catalogue import program
from tests.support.outside.building import extension
from tests.support.outside.calling import called


@program
def functions_of_an_extension():
    ext = extension()
    x, y = torch.randn(4, 6), torch.empty(4, 6)
    called(ext.fused, x, y, 2.0, shift=0.5)
    part = y[1:3]
    called(ext.scale_, part, 3.0)
    called(ext.scale_, torch.empty(0), 3.0)
    called(ext.scale_all, [x, y, x], 2.0)
    called(ext.scale_all, {"x": x, "y": y.view(-1)}, 1.0)
    with contextlib.suppress(ValueError):
        called(ext.fails, x)
    unchanged = called(ext.scale_, x, 1.0)
    return x, y, unchanged is x, called(ext.sum, y)


@program
def operators_inside_a_function():
    ext = extension()
    x = torch.randn(8)
    plain = called(ext.after, torch.neg, x, False)
    doubled = called(ext.after, torch.neg, x, True)
    again = called(ext.after, lambda t: t.mul_(3), x, True)
    viewed = called(ext.after, lambda t: torch.empty(8).view(2, 4).copy_(t.view(2, 4)).view(-1), x, True)
    nested = called(ext.after, lambda t: called(ext.scale_, t + 1, 2.0), x, True)
    return plain, doubled, again, viewed, nested, x + 1


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.empty_like(x)
        called(extension().fused, x, y, 2.0)
        return y

    @staticmethod
    def backward(ctx, gradient):
        made = torch.empty_like(gradient)
        called(extension().fused, gradient.contiguous(), made, 2.0)
        return made


@program
def functions_with_a_gradient():
    layer = torch.nn.Linear(4, 4)
    for _ in range(2):
        loss = _Scaled.apply(layer(torch.randn(3, 4))).pow(2).sum()
        loss.backward()
    return layer.weight.grad


@program
def addresses_and_arrays():
    library = ctypes.CDLL(extension().__file__)
    scale = library.plain_scale
    scale.argtypes, scale.restype = (ctypes.c_void_p, ctypes.c_long, ctypes.c_double), None
    x = torch.randn(6)
    called(scale, x.data_ptr(), 6, 2.0)
    called(scale, ctypes.c_void_p(x[2:].data_ptr()), 4, 2.0)
    array = x.numpy()
    called(scale, array.ctypes.data_as(ctypes.c_void_p), 6, 0.5)
    called(extension().sum, x)
    return x + 1
