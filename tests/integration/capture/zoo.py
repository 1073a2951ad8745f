"""A zoo of small programs that use torch in unusual ways; prints exact bits, warnings and tracebacks of each.

Run bare or under capture (`--capture MODE`), the output has to be the same. Not a test module itself.
"""

import copy
import io
import pickle
import sys
import traceback
import warnings

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

PROGRAMS = []


def program(function):
    PROGRAMS.append(function)
    return function


@program
def flex_attention():
    from torch.nn.attention.flex_attention import flex_attention

    q = torch.randn(1, 2, 8, 16)
    return flex_attention(q, q, q)


@program
def cond():
    x = torch.randn(3)
    return torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x - 1, (x,))


@program
def while_loop():
    from torch._higher_order_ops.while_loop import while_loop

    return while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2), (torch.tensor(0), torch.ones(2)))


@program
def compiled_training():
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 4))
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


@program
def nodes_that_change_under_a_mode():
    x = torch.randn(5, 5, requires_grad=True)
    value = torch.tensor(2.0, requires_grad=True)
    y = x.masked_fill(x > 0, value) * torch.randn(5, 5)
    (y.prod(0).sum() + x.prod()).backward()
    return x.grad, value.grad


@program
def scripted():
    @torch.jit.script
    def f(x):
        return x * 2 + 1

    return f(torch.ones(3)), torch.jit.wait(torch.jit.fork(f, torch.ones(2)))


@program
def transforms():
    g = torch.func.grad(lambda x: (x**2).sum())(torch.ones(3))
    _, j = torch.func.jvp(lambda x: x.sin(), (torch.ones(3),), (torch.ones(3),))
    return g, j, torch.func.vmap(lambda x: x * 2)(torch.ones(2, 3)), torch.func.functionalize(lambda x: x.add_(1))(torch.ones(2))


@program
def anomaly():
    with torch.autograd.detect_anomaly():
        x = torch.zeros(3, requires_grad=True)
        (x / x).sum().backward()


@program
def tensor_hooks():
    seen = []
    x = torch.ones(3, requires_grad=True)
    y = x * 2
    y.register_hook(lambda g: seen.append(g.clone()))
    x.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
    y.sum().backward()
    return seen


@program
def module_hooks():
    seen = []
    net = torch.nn.Linear(2, 2)
    net.register_forward_hook(lambda module, args, out: seen.append(out.detach()))
    net.register_full_backward_hook(lambda module, gi, go: seen.append(go[0]))
    net(torch.ones(1, 2, requires_grad=True)).sum().backward()
    return seen


@program
def autocast():
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = net(torch.randn(2, 4))
    y.sum().backward()
    return y, [p.grad for p in net.parameters()]


@program
def recurrent_and_attention():
    rnn = torch.nn.LSTM(3, 4)
    y, _ = rnn(torch.randn(5, 2, 3))
    y.sum().backward()
    encoder = torch.nn.TransformerEncoderLayer(8, 2, batch_first=True)
    z = encoder(torch.randn(2, 3, 8))
    z.sum().backward()
    encoder.eval()
    with torch.inference_mode():
        w = encoder(torch.randn(2, 3, 8))
    return y, z, w, rnn.weight_hh_l0.grad


@program
def backends_with_kernels_of_their_own_for_composites():
    """Nested and sparse tensors run `linear` and `matmul` as one kernel; inference mode opens plain ones by the formula in C++."""
    nested = torch.nested.nested_tensor([torch.randn(2, 4), torch.randn(3, 4)])
    net = torch.nn.Linear(4, 4)
    padded = [torch.nested.to_padded_tensor(net(nested), fill) for fill in (0.0, 0.5)]
    padded[1].sum().backward()
    sparse = torch.randn(4, 4).relu().to_sparse()
    with torch.inference_mode():
        inside = (
            net(torch.randn(3, 2, 4)),
            torch.matmul(torch.randn(2, 3, 4), torch.randn(4, 5)),
            torch.nested.to_padded_tensor(net(nested), 0.5),
        )
    return padded, net.weight.grad, torch.matmul(sparse, torch.randn(4, 3)), sparse @ torch.randn(4, 2), inside


@program
def checkpoints():
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 4))
    x = torch.randn(2, 4, requires_grad=True)
    (checkpoint(net, x, use_reentrant=True) + checkpoint(net, x, use_reentrant=False)).sum().backward()
    return x.grad, [p.grad for p in net.parameters()]


@program
def saved_tensor_hooks():
    with torch.autograd.graph.save_on_cpu():
        x = torch.ones(3, requires_grad=True)
        (x.exp() * 2).sum().backward()
    return x.grad


@program
def deterministic_empty():
    torch.use_deterministic_algorithms(True)
    try:
        return torch.empty(3)
    finally:
        torch.use_deterministic_algorithms(False)


@program
def symbolic():
    from torch.fx.experimental.proxy_tensor import make_fx

    traced = torch.fx.symbolic_trace(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()))
    exported = torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),))
    return traced(torch.ones(1, 2)), exported.module()(torch.ones(1, 2)), make_fx(lambda x: x.sin() + 1)(torch.ones(3)).code


@program
def copies_and_files():
    net = torch.nn.Linear(2, 2)
    buffer = io.BytesIO()
    torch.save({"net": net.state_dict()}, buffer)
    size = buffer.tell()
    buffer.seek(0)
    return copy.deepcopy(net).weight, pickle.loads(pickle.dumps(net.weight)), torch.load(buffer)["net"]["bias"], size


@program
def printing():
    return repr(torch.randn(20, 30)), str(torch.tensor([1e-9, float("nan")])), f"{torch.tensor(1.5):.3f}"


@program
def modes_and_subclasses_of_the_program():
    calls = []

    class Functions(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            calls.append(("function", getattr(func, "__name__", str(func))))
            return func(*args, **(kwargs or {}))

    class Operators(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            calls.append(("operator", str(func)))
            return func(*args, **(kwargs or {}))

    class Sub(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            calls.append(("subclass", getattr(func, "__name__", str(func))))
            return super().__torch_function__(func, types, args, kwargs)

    net, x = torch.nn.Linear(3, 3), torch.randn(2, 3)
    optimizer = torch.optim.AdamW(net.parameters())
    with Functions():
        net(x).sum().backward()
        x.tolist(), torch.cat([x, x])
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
    with Operators():
        net(x).sum().backward()
        optimizer.step()
    s = x.as_subclass(Sub)
    (s * 2).sum().item(), net(s), s.tolist(), s.numpy()
    p = torch.nn.Parameter(s)
    p.grad = torch.ones_like(p)
    torch.optim.SGD([p], lr=0.1).step()
    return calls


@program
def raises_in_an_operator():
    torch.ones(3, 4).mm(torch.ones(3, 4))


@program
def raises_in_a_module():
    class Inner(torch.nn.Module):
        def forward(self, x):
            return x @ torch.ones(7, 7)

    torch.nn.Sequential(torch.nn.Identity(), Inner())(torch.ones(1, 3))


class Bad(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return torch.ones(2) + torch.ones(3)


@program
def raises_in_backward():
    Bad.apply(torch.ones(3, requires_grad=True)).sum().backward()


@program
def raises_in_a_step():
    p = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([p], lr=0.1)
    p.grad = torch.ones(2)
    optimizer.param_groups[0]["lr"] = torch.ones(3)
    optimizer.step()


@program
def raises_in_a_loader():
    class Rows(torch.utils.data.Dataset):
        def __len__(self):
            return 2

        def __getitem__(self, index):
            raise KeyError(index)

    next(iter(torch.utils.data.DataLoader(Rows())))


@program
def raises_in_load_state_dict():
    torch.nn.Linear(2, 2).load_state_dict({"weight": torch.ones(3, 3)})


@program
def raises_an_error_of_its_own():
    class Custom(Exception):
        pass

    class Inner(torch.nn.Module):
        def forward(self, x):
            try:
                x @ torch.ones(7, 7)
            except RuntimeError as error:
                raise Custom("inner") from error

    Inner()(torch.ones(1, 3))


@program
def warnings_name_the_line_of_the_program():
    out = torch.ones(5)
    torch.add(torch.ones(3), 1, out=out)
    torch.nn.functional.softmax(torch.ones(2), dim=None)
    scheduler = torch.optim.lr_scheduler.StepLR(torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1), 1)
    scheduler.step()

    class Warns(torch.nn.Module):
        def forward(self, x):
            for level in range(1, 7):
                warnings.warn(f"level {level}", stacklevel=level)
            return x

    torch.nn.Sequential(Warns())(torch.ones(1))


def shown(value):
    if isinstance(value, torch.Tensor):
        value = value.detach()
        if value.dtype.is_floating_point:
            return [float(item).hex() for item in value.double().flatten()]
        return value.flatten().tolist()
    if isinstance(value, tuple | list):
        return [shown(item) for item in value]
    return value


def main(names):
    for function in PROGRAMS:
        if names and function.__name__ not in names:
            continue
        torch.manual_seed(0)
        print("==", function.__name__)
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                result = function()
            print(shown(result))
        except Exception:
            print(traceback.format_exc())
        for warning in caught:
            print("warning", str(warning.message).splitlines()[0][:200], warning.filename, warning.lineno)
        print("random", torch.rand(1).item(), torch._C._len_torch_dispatch_stack() <= 1)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--capture"]:
        from tests.support.capturing import capturing

        mode = sys.argv[2]
        with capturing(mode) as seen:
            main(sys.argv[3:])
        gaps = seen.coverage["gaps"]
        print("gaps", gaps, len(seen.events) > 300 or len(sys.argv) > 3, file=sys.stderr)
    else:
        main(sys.argv[1:])
