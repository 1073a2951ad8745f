"""A callback that keeps an average of the weights, from some step on, and puts it in place at the end."""

import lightning
import torch


class WeightAverage(lightning.Callback):
    def __init__(self, decay: float, start: int) -> None:
        self.decay, self.start = decay, start
        self.average: dict[str, torch.Tensor] = {}
        self.updates = 0

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_index):
        updated = trainer.global_step > self.updates
        self.updates = trainer.global_step
        if updated and self.updates >= self.start:
            self.follow(module)

    @torch.no_grad()
    def follow(self, module):
        for name, weight in module.named_parameters():
            average = self.average.setdefault(name, weight.detach().clone())
            average.mul_(self.decay)
            average.add_(weight, alpha=1 - self.decay)

    @torch.no_grad()
    def on_train_end(self, trainer, module):
        for name, weight in module.named_parameters():
            weight.copy_(self.average[name])
