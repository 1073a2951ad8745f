"""Kinds of tensors: sparse, nested, quantised, meta, and subclasses that take calls apart."""

import warnings

import torch
from torch import nn
from torch.utils import _pytree as pytree

from tests.support.engine_programs.catalogue import program


@program
def sparse():
    x = torch.randn(4, 4).relu().to_sparse().requires_grad_()
    y = torch.sparse.mm(x, torch.randn(4, 3))
    y.sum().backward()
    c = torch.sparse_coo_tensor(torch.tensor([[0, 0, 1]]), torch.ones(3), (2,))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rows = torch.randn(3, 3).relu().to_sparse_csr()
        return x.grad.to_dense(), c.coalesce().values() + 1, rows @ torch.randn(3), (x.detach() * 2).to_dense(), c.to_dense()


@program(needs=("torch.nested.nested_tensor",))
def nested():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        net = nn.Linear(4, 4)
        x = torch.nested.nested_tensor([torch.randn(2, 4), torch.randn(3, 4)])
        padded = torch.nested.to_padded_tensor(net(x), 0.0)
        padded.sum().backward()
        return padded, net.weight.grad


@program(needs=("torch.nested.nested_tensor_from_jagged",))
def nested_jagged():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        values = torch.randn(5, 4, requires_grad=True)
        x = torch.nested.nested_tensor_from_jagged(values, torch.tensor([0, 2, 5]))
        y = (nn.functional.layer_norm(x, (4,)) * 2).values()
        y.sum().backward()
        return y, values.grad


@program
def quantised():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x = torch.quantize_per_tensor(torch.randn(4), 0.1, 5, torch.qint8)
        fake = torch.fake_quantize_per_tensor_affine(torch.randn(4, requires_grad=True), 0.1, 0, -128, 127)
        fake.sum().backward()
        return x.dequantize() + 1, x.int_repr(), fake


@program
def meta():
    x = torch.ones(3, 4, device="meta")
    y = nn.Linear(4, 2, device="meta")(x)
    return y.shape, torch.ones(2) + 1


class Wrapped(torch.Tensor):
    """A wrapper subclass that takes each call apart into calls on its inner tensor."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, requires_grad=inner.requires_grad)

    def __init__(self, inner):
        self.inner = inner

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        args, kwargs = pytree.tree_map_only(cls, lambda t: t.inner, (args, kwargs or {}))
        made = func(*args, **kwargs)
        return pytree.tree_map_only(torch.Tensor, cls, made)


@program
def subclass_that_wraps():
    x = Wrapped(torch.randn(2, 3))
    net = nn.Linear(3, 2)
    y = net(x)
    weight = torch.randn(3, requires_grad=True)
    total = (x * weight).sum()
    z = x.add(1).mul_(2)
    return y.inner.detach(), z.inner, total.inner.detach()


@program
def subclass_as_a_parameter():
    p = nn.Parameter(Wrapped(torch.randn(3)))
    (p * 2).sum().backward()
    with torch.no_grad():
        p.sub_(p.grad)
    return p.detach().inner


class Plain(torch.Tensor):
    """A subclass without behaviour of its own."""


class Watching(torch.Tensor):
    """A subclass at the level of functions."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        made = super().__torch_function__(func, types, args, kwargs)
        return made.as_subclass(Watching) if isinstance(made, torch.Tensor) else made


class Passing(torch.Tensor):
    """A subclass whose dispatch only passes calls on."""

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        with torch._C._DisableTorchDispatch():
            return func(*args, **(kwargs or {}))


@program
def subclasses_that_are_plain_memory():
    x, y, z = torch.randn(3).as_subclass(Plain), torch.randn(3).as_subclass(Watching), torch.randn(3)
    passing = torch.Tensor._make_subclass(Passing, z)
    weight = nn.Parameter(torch.randn(3).as_subclass(Plain))
    (weight * z).sum().backward()
    return (x + 1).as_subclass(torch.Tensor), (y * 2).sum().item(), weight.grad.as_subclass(torch.Tensor), (passing + 1).sum().item()


@program(needs=("torch.testing._internal.two_tensor.TwoTensor",))
def two_tensors():
    from torch.testing._internal.two_tensor import TwoTensor

    x = TwoTensor(torch.randn(3), torch.randn(3))
    y = (x * 2 + torch.ones(3)).sum()
    return y.a, y.b


@program
def uninitialised_modules():
    net = nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyBatchNorm1d())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        net(torch.randn(3, 2)).sum().backward()
    return [p.grad for p in net.parameters()]
