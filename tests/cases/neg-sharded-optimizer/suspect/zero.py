import torch
import torch.distributed as dist


class ShardedAdamW:
    """Each rank keeps optimizer state for some parameters, updates them and sends them to the others."""

    def __init__(self, params, **options):
        self.params = list(params)
        world = dist.get_world_size()
        self.owner = {p: index % world for index, p in enumerate(self.params)}
        mine = [p for p in self.params if self.owner[p] == dist.get_rank()]
        self.inner = torch.optim.AdamW(mine, **options)

    def zero_grad(self):
        for p in self.params:
            p.grad = None

    def step(self):
        world = dist.get_world_size()
        for p in self.params:
            p.grad.div_(world)
            dist.reduce(p.grad, dst=self.owner[p])
        self.inner.step()
        for p in self.params:
            dist.broadcast(p.data, src=self.owner[p])
