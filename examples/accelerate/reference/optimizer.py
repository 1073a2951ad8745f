"""AdamW with lookahead: every third update the weights go back part of the way to where they were three updates ago."""

import torch


class LookaheadAdamW(torch.optim.AdamW):
    def __init__(self, params, *, every=3, alpha=0.8, **options):
        super().__init__(params, **options)
        self.every, self.alpha, self.updates = every, alpha, 0
        self.slow = [[p.detach().clone() for p in group["params"]] for group in self.param_groups]

    @torch.no_grad()
    def step(self, closure=None):
        loss = super().step(closure)
        self.updates += 1
        if self.updates % self.every == 0:
            for group, slow in zip(self.param_groups, self.slow, strict=True):
                for p, kept in zip(group["params"], slow, strict=True):
                    kept.add_(p - kept, alpha=self.alpha)
                    p.copy_(kept)
        return loss
