import torch
from orthogonal import orthogonalise


class MuonWithAdam:
    """Muon for hidden matrices; everything else goes to AdamW."""

    def __init__(self, matrices, others, lr=0.02, momentum=0.95):
        self.matrices, self.lr, self.momentum = list(matrices), lr, momentum
        self.buffers = [torch.zeros_like(m) for m in self.matrices]
        self.adam = torch.optim.AdamW(others, lr=3e-3)

    def zero_grad(self):
        for m in self.matrices:
            m.grad = None
        self.adam.zero_grad()

    @torch.no_grad()
    def step(self):
        self.adam.step()
        for weight, buffer in reversed(list(zip(self.matrices, self.buffers, strict=False))):
            buffer.lerp_(weight.grad, 1 - self.momentum)
            update = orthogonalise(weight.grad.lerp(buffer, self.momentum))
            weight.add_(update, alpha=-self.lr)
