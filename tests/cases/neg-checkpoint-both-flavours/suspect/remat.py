import torch.nn as nn
from torch.utils.checkpoint import checkpoint


class Remat(nn.Module):
    """Runs a module under activation checkpointing, in one of the two implementations."""

    def __init__(self, module, use_reentrant):
        super().__init__()
        self.module, self.use_reentrant = module, use_reentrant

    def forward(self, x):
        return checkpoint(self.module, x, use_reentrant=self.use_reentrant, preserve_rng_state=True)
