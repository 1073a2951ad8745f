import torch
import torch.distributed as dist


def broadcast_weights(module):
    with torch.no_grad():
        for p in reversed(list(module.parameters())):
            dist.broadcast(p, src=0)


class GradientAverager:
    """Averages gradients from hooks, one tensor at a time, asynchronously."""

    def __init__(self, module):
        self.pending = []
        for p in module.parameters():
            p.register_post_accumulate_grad_hook(self._launch)

    def _launch(self, p):
        p.grad.mul_(1 / dist.get_world_size())
        self.pending.append(dist.all_reduce(p.grad, async_op=True))

    def wait(self):
        while self.pending:
            self.pending.pop().wait()
