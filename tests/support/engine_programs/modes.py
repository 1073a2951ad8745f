"""Modes of the program itself, which stand above an engine or in its way."""

import contextlib

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tests.support.engine_programs.catalogue import program


class Noting(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls.append(str(func))
        return func(*args, **(kwargs or {}))


class Doubling(TorchDispatchMode):
    """Runs something else than what it was asked for."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        return made * 2 if func is torch.ops.aten.add.Tensor else made


class Functions(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.calls.append(getattr(func, "__name__", str(func)))
        return func(*args, **(kwargs or {}))


@program
def operators_noted():
    net = nn.Linear(3, 3)
    optimizer = torch.optim.AdamW(net.parameters())
    with Noting() as noting:
        net(torch.randn(2, 3)).sum().backward()
        optimizer.step()
    return noting.calls, [p.grad for p in net.parameters()]


@program
def operators_replaced():
    with Doubling():
        x = torch.ones(3) + 1
        with Noting() as noting:
            y = x + torch.ones(3)
    return x, y, noting.calls


@program
def functions_noted():
    net, x = nn.Linear(3, 3), torch.randn(2, 3)
    with Functions() as functions:
        net(x).sum().backward()
        torch.cat([x, x]).tolist()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    return functions.calls, net.weight.grad


@program
def flops_counted():
    from torch.utils.flop_counter import FlopCounterMode

    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    with FlopCounterMode(display=False) as counter:
        net(torch.randn(2, 3)).sum().backward()
        q = torch.randn(1, 2, 4, 8)
        nn.functional.scaled_dot_product_attention(q, q, q)
    return counter.get_total_flops()


@program
def fake_tensors():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode:
        x = torch.randn(3, 4)
        y = nn.Linear(4, 2)(x)
        z = mode.from_tensor(torch.ones(2)) + 1
    return tuple(y.shape), tuple(z.shape), torch.ones(2) * 2


@program
def devices_by_default():
    with torch.device("cpu"):
        x = torch.ones(3)
    with torch.device("meta"):
        net = nn.Linear(3, 3)
    net = net.to_empty(device="cpu")
    with torch.no_grad():
        for p in net.parameters():
            p.fill_(0.5)
    return net(x)


@program
def profiled():
    with torch.profiler.profile(record_shapes=True) as profiler:
        x = torch.randn(3, requires_grad=True)
        with torch.profiler.record_function("part"):
            (x * 2).sum().backward()
    return sorted({event.name for event in profiler.events() if event.name.startswith(("aten::mul", "part"))}), x.grad


@program
def dispatch_switched_off():
    x = torch.ones(3)
    with torch._C._DisableTorchDispatch():
        y = x + 1
    with torch._C._AutoDispatchBelowAutograd():
        z = y * 2
    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)):
        w = z - 1
    return w * 3


@program
def autocast_nested_and_off():
    a, b = torch.randn(3, 3), torch.randn(3, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        c = a @ b
        with torch.autocast("cpu", enabled=False):
            d = c.float() @ b
        e = c.softmax(-1) + torch.nn.functional.layer_norm(c, (3,))
        f = nn.Linear(3, 3)(d)
    with torch.autocast("cpu", dtype=torch.float16, cache_enabled=False):
        g = a @ b
    return c, d, e, f, g


@program
def deterministic_and_filled():
    torch.use_deterministic_algorithms(True)
    try:
        x = torch.empty(3)
        return x, torch.zeros(4).index_add_(0, torch.tensor([0, 0]), torch.ones(2)), torch.empty(2).resize_(5)
    finally:
        torch.use_deterministic_algorithms(False)


@program
def kernels_of_attention_chosen():
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q = torch.randn(1, 2, 8, 16, requires_grad=True)
    seen = []
    for backend in (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION):
        with contextlib.suppress(RuntimeError), sdpa_kernel(backend):
            made = nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
            made.sum().backward()
            seen.append(made.detach())
    return seen, q.grad
