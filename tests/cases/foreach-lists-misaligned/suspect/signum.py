import torch
from torch.optim import Optimizer


class FusedSignum(Optimizer):
    """Signum with multi-tensor operations."""

    def __init__(self, params, lr=1e-3, momentum=0.9):
        super().__init__(params, dict(lr=lr, momentum=momentum))

    def _buffers(self, params):
        for p in params:
            state = self.state[p]
            if not state:
                state["momentum_buffer"] = torch.zeros_like(p)
        return [self.state[p]["momentum_buffer"] for p in params]

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            params = group["params"]
            buffers = self._buffers(params)
            grads = [p.grad for p in params if p.grad is not None]
            params = [p for p in params if p.grad is not None]
            buffers = buffers[: len(grads)]
            torch._foreach_mul_(buffers, group["momentum"])
            torch._foreach_add_(buffers, grads, alpha=1 - group["momentum"])
            signs = torch._foreach_sign(buffers)
            torch._foreach_add_(params, signs, alpha=-group["lr"])
