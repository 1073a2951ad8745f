import torch.distributed as dist


class LayerwiseSync:
    """Sums gradients over ranks layer by layer, last layer first."""

    def __init__(self, module):
        self.layers = [m for m in module.modules() if next(m.parameters(recurse=False), None) is not None]

    def __call__(self):
        for layer in reversed(self.layers):
            for param in layer.parameters(recurse=False):
                dist.all_reduce(param.grad)
