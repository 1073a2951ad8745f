"""Operators with unusual arguments and results: in place, views, memory not written, growth, errors, reads, random numbers."""

import ctypes
import traceback

import torch
from torch.nn import functional as F

from tests.support.engine_programs.catalogue import program


@program
def in_place_and_views():
    x = torch.zeros(4, 6)
    x[1].fill_(2)
    x.view(2, 12)[:, ::3].add_(1)
    x.t()[0].mul_(3).sub_(x[:, 1])
    y = x.unsqueeze(0).expand(3, 4, 6)
    left, right = x.split(3, dim=1)
    left.copy_(right)
    torch.add(y, 1).clamp_(0, 2)
    return x, y.sum(), x.diagonal().clone()


@program
def in_place_on_a_graph():
    x = torch.randn(3, 4, requires_grad=True)
    y = x * 2
    y[:, 1] = 0
    part = y[1:, :2]
    part.mul_(3)
    y.sigmoid_()
    y.sum().backward()
    return x.grad


@program
def slices_and_strides():
    x = torch.arange(24.0)
    y = torch.as_strided(x, (3, 4), (2, 3), 1)
    y.mul_(2)
    z = x.view(4, 6)[::2, 1::2]
    overlapping = x.unfold(0, 4, 2)
    return (
        y + 1,
        z.contiguous(),
        z.t() @ z,
        overlapping.sum(-1),
        x.flip(0),
        x.view(2, 3, 4).permute(2, 0, 1).contiguous(memory_format=torch.contiguous_format),
    )


@program
def memory_not_written():
    empty = torch.empty(4, 4)
    empty[0] = 1
    empty[:, 1:3].zero_()
    a = empty[0] * 2
    strided = torch.empty_strided((2, 3), (1, 2))
    strided.copy_(torch.ones(2, 3))
    new = a.new_empty(3)
    new.fill_(7)
    rest = torch.empty_like(a)
    rest[::2] = 1
    rest[1::2] = 2
    return a, strided, new, rest + 0


@program
def resized():
    x = torch.ones(4)
    x.resize_(8)
    x[4:] = 2
    y = torch.empty(0)
    torch.mul(x, 2, out=y)
    z = torch.ones(2, 3)
    z.resize_(2, 2)
    storage = x.untyped_storage()
    storage.resize_(64)
    x.set_(storage, 0, (8,), (1,))
    x.data = x[:4] * 1
    return x + 1, y, z


@program
def results_put_into_arguments():
    out, values, places = torch.empty(3), torch.empty(2), torch.empty(2, dtype=torch.int64)
    torch.add(torch.ones(3), 2, out=out)
    torch.sort(torch.tensor([3.0, 1.0]), out=(values, places))
    torch.cat([out, values], out=torch.empty(5))
    torch.mm(torch.ones(2, 2), torch.ones(2, 2), out=torch.empty(2, 2).t())
    torch.frexp(torch.ones(2), out=(torch.empty(2), torch.empty(2, dtype=torch.int32)))
    return out, values, places


@program
def exceptions():
    said = []
    for attempt in (
        lambda: torch.ones(3, 4).mm(torch.ones(3, 4)),
        lambda: torch.ones(3).index_select(0, torch.tensor([7])),
        lambda: torch.ones(3).add_(torch.ones(4)),
        lambda: torch.linalg.cholesky(-torch.eye(2)),
        lambda: torch.multinomial(torch.tensor([-1.0]), 1),
        lambda: torch.empty(2, dtype=torch.int64).normal_(),
        lambda: F.cross_entropy(torch.ones(2, 3), torch.tensor([0, 9])),
        lambda: torch.ones(2, requires_grad=True).add_(1),
    ):
        try:
            attempt()
        except Exception:
            said.append(traceback.format_exc())
    return said, torch.ones(2) + 1


@program
def in_place_error_leaves_what_was_written():
    x = torch.ones(4)
    y = x * 2
    try:
        torch.index_put_(y, (torch.tensor([0, 9]),), torch.zeros(2))
    except (IndexError, RuntimeError) as error:
        kind = type(error).__name__
    return kind, y.sum()


@program
def dropout_and_generators():
    own = torch.Generator()
    own.manual_seed(5)
    x = torch.ones(8)
    seen = [F.dropout(x, 0.5), torch.rand(3, generator=own), torch.randperm(5), torch.bernoulli(x * 0.5, generator=own), x.normal_()]
    state = torch.get_rng_state()
    seen += [torch.randn(2), torch.randint(0, 9, (3,)), torch.multinomial(torch.rand(4), 2)]
    torch.set_rng_state(state)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(9)
        seen.append(torch.randn(2))
    other = torch.Generator()
    seen += [torch.randn(2), torch.empty(3).exponential_(generator=other), F.gumbel_softmax(x), F.rrelu(x, training=True)]
    q = torch.randn(1, 2, 4, 8)
    return seen, F.scaled_dot_product_attention(q, q, q, dropout_p=0.5), F.scaled_dot_product_attention(q, q, q)


@program
def reads():
    x = torch.randn(3)
    seen = [x.sum().item(), x.tolist(), bool(x[0] > 0), float(x[1]), int(x.argmax()), x.numpy().sum(), repr(x), f"{x[0]:.3f}", x.equal(x)]
    if x.mean() > 0:
        seen.append("positive")
    return seen, [value.item() for value in x], torch.allclose(x, x + 1e-9), x.nonzero().shape


@program
def memory_shared_with_numpy():
    import numpy

    array = numpy.ones(4, dtype=numpy.float32)
    x = torch.from_numpy(array)
    y = x * 2
    array[0] = 5
    z = x * 2
    inner = y.numpy()
    inner[1] = 9
    return y + 1, z, torch.asarray(array) + 1, torch.frombuffer(bytearray(8), dtype=torch.float32) + 1


@program
def bytes_changed_below():
    x = torch.ones(4)
    y = x * 2
    ctypes.cast(y.untyped_storage().data_ptr(), ctypes.POINTER(ctypes.c_float))[2] = 7.0
    return y + 1


@program
def indices_and_scatters():
    x = torch.randn(5, 3, requires_grad=True)
    i = torch.tensor([0, 2, 2, 4])
    y = x.clone()
    y[i] = 1.5
    y[y > 1] = 0
    z = torch.zeros(5, 3).index_add(0, i, x[i]).index_put((i, torch.tensor([0, 1, 2, 0])), x[:4, 0], accumulate=True)
    w = torch.zeros(5, 3).scatter(0, torch.tensor([[0, 1, 2]]), x[:1]).scatter_add(0, torch.tensor([[1, 1, 1]]), x[1:2])
    v = torch.zeros(3).scatter_reduce(0, torch.tensor([0, 0, 1, 2, 2]), x[:, 0], "amax", include_self=False)
    (y.sum() + z.sum() + w.sum() + v.sum() + x.gather(1, torch.zeros(5, 1, dtype=torch.int64)).sum() + x.take(i).sum()).backward()
    return x.grad, x.detach()[None, :, 1], x.detach()[[0, 1]][..., -1], torch.where(x.detach() > 0, 1.0, x.detach())


@program
def products():
    a, b = torch.randn(2, 3, 4, requires_grad=True), torch.randn(2, 4, 5, requires_grad=True)
    made = torch.einsum("bij,bjk->bik", a, b)
    other = torch.einsum("bij,bjk,k->b", a, b, torch.randn(5))
    q = torch.randn(1, 2, 6, 8, requires_grad=True)
    mask = torch.ones(6, 6, dtype=torch.bool).tril()
    attended = F.scaled_dot_product_attention(q, q, q, attn_mask=mask) + F.scaled_dot_product_attention(q, q, q, is_causal=True)
    (
        made.sum()
        + other.sum()
        + attended.sum()
        + torch.baddbmm(made, a, b, alpha=0.5).sum()
        + F.bilinear(a, a, torch.randn(2, 4, 4)).sum()
    ).backward()
    return (
        a.grad,
        b.grad,
        q.grad,
        torch.tensordot(a.detach(), b.detach(), dims=([2], [1])),
        torch.linalg.multi_dot([torch.ones(2, 3), torch.ones(3, 4), torch.ones(4)]),
    )


@program
def losses():
    x, y = torch.randn(4, 5, requires_grad=True), torch.tensor([1, 0, 4, 2])
    soft = torch.randn(4, 5).softmax(-1)
    total = F.cross_entropy(x, y, label_smoothing=0.1, ignore_index=4) + F.kl_div(x.log_softmax(-1), soft, reduction="batchmean")
    total = total + F.binary_cross_entropy_with_logits(x, soft) + F.huber_loss(x, soft) + F.ctc_loss(
        x.log_softmax(-1).unsqueeze(1), torch.tensor([[1, 2]]), torch.tensor([4]), torch.tensor([2])
    )  # fmt: skip
    total.backward()
    return total, x.grad


@program
def reductions_and_sorts():
    x = torch.randn(4, 6, requires_grad=True)
    values, places = x.topk(2)
    (x.cumsum(1).sum() + x.std() + x.logsumexp(1).sum() + values.sum() + x.median() + x.max(dim=1).values.sum() + x.norm()).backward()
    y = x.detach()
    return x.grad, places, y.sort(descending=True), y.unique(return_inverse=True), y.histc(4), y.mode(), torch.searchsorted(y.sort()[0], y)


@program
def scalars_and_types():
    x = torch.arange(6)
    return (
        x / 2, x // 4, x.bool(), x.half() * 1.5, x.to(torch.bfloat16), x.to(torch.complex64), x.double().float(), torch.tensor(3) + x,
        torch.full((2,), float("nan")), torch.scalar_tensor(2.5), torch.linspace(0, 1, 3),
        torch.tensor([1, 2])[0] * 2.5, x.view(torch.uint8).sum(),
        torch.tensor(5.0).new_tensor([1.0]), x.float().log(), torch.ones(0, 3).sum(0), torch.zeros(()) + 1, x % 2 == 0,
    )  # fmt: skip


@program(needs=("torch.float8_e4m3fn",))
def narrow_floats():
    x = torch.randn(4).to(torch.float8_e4m3fn)
    return x.float() * 2, x.view(torch.uint8), torch.randn(3).to(torch.float8_e5m2).to(torch.float16)


@program
def lists_of_tensors():
    xs = [torch.randn(3) for _ in range(3)]
    torch._foreach_add_(xs, 1)
    torch._foreach_addcmul_(xs, xs, xs, 0.5)
    made = torch._foreach_mul(xs, [1.0, 2.0, 3.0])
    norms = torch._foreach_norm(xs)
    return (
        made,
        norms,
        torch.stack(xs),
        torch.meshgrid(xs[0], xs[1], indexing="ij"),
        torch.block_diag(*xs),
        torch.broadcast_tensors(xs[0], torch.ones(2, 1)),
    )


@program
def the_same_tensor_twice():
    x = torch.randn(3, 3)
    y = x + x
    x.add_(x)
    torch.addmm(x, x, x, out=x)
    z = x[:2]
    z.add_(x[2])
    return y, x, torch.cat([x, x, x[:1]])


@program
def versions_and_detached_memory():
    x = torch.ones(3, requires_grad=True)
    y = x.detach()
    y.mul_(2)
    x.data.add_(1)
    with torch.no_grad():
        x.fill_(4)
    z = torch.ones(3)
    with torch.autograd._unsafe_preserve_version_counter(z):
        z.add_(1)
    return x.detach() + 1, z + 1, x._version, y._version


@program
def freed_and_born_again():
    seen = []
    for number in range(60):
        x = torch.full((64,), float(number))
        y = x * 2
        del x
        seen.append(y.sum())
    return seen


@program
def many_views_of_one_buffer():
    flat = torch.zeros(256)
    for number in range(200):
        flat[number : number + 3] += number
    return flat, flat[10:20].sum()


@program
def a_buffer_written_bit_by_bit():
    buffer = torch.empty(8, 8)
    for row in range(8):
        buffer[row, ::2] = row
        buffer[row, 1::2] = -row
        buffer[: row + 1].sum()
    return buffer + 1


@program
def composites_in_inference_mode():
    net = torch.nn.Linear(4, 4)
    with torch.inference_mode():
        x = torch.randn(2, 3, 4)
        return (
            net(x),
            torch.matmul(x, torch.randn(4, 5)),
            x.reshape(-1),
            x.flatten(1) + 1,
            F.layer_norm(x, (4,)),
            torch.einsum("bij->bj", x),
            x.add_(1),
        )
