"""AdamW with lookahead: every third update the weights go back part of the way to where they were three updates ago."""

import torch


class LookaheadAdamW(torch.optim.AdamW):
    def __init__(self, params, *, every=3, alpha=0.8, **options):
        super().__init__(params, **options)
        self.every, self.alpha, self.updates = every, alpha, 0
        self.slow = {p: p.detach().clone() for p in self.parameters()}

    def parameters(self):
        return (p for group in self.param_groups for p in group["params"])

    @torch.no_grad()
    def step(self, closure=None):
        loss = super().step(closure)
        self.updates += 1
        if self.updates % self.every == 0:
            self.look_back()
        return loss

    def look_back(self):
        for p in self.parameters():
            slow = self.slow[p]
            slow.add_(p - slow, alpha=self.alpha)
            p.copy_(slow)
