import torch
import torch.distributed as dist


def flatten(tensors):
    return torch.cat([t.reshape(-1) for t in tensors])


def unflatten_into(flat, tensors):
    for t, part in zip(tensors, flat.split([t.numel() for t in tensors])):
        t.copy_(part.view_as(t))


@torch.no_grad()
def sync_buffers(module):
    """Rank 0's buffers on all ranks, one broadcast for each dtype."""
    kinds = {}
    for b in module.buffers():
        kinds.setdefault(b.dtype, []).append(b)
    for tensors in kinds.values():
        flat = flatten(tensors)
        dist.broadcast(flat, src=0)
        unflatten_into(flat, tensors)


@torch.no_grad()
def average_gradients(module):
    grads = [p.grad for p in module.parameters()]
    flat = flatten(grads)
    work = dist.all_reduce(flat, async_op=True)
    work.wait()
    flat /= dist.get_world_size()
    unflatten_into(flat, grads)
