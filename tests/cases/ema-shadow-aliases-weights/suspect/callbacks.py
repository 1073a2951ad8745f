import torch


class Callback:
    def on_fit_start(self, trainer):
        pass

    def on_step_end(self, trainer, loss):
        pass


class PrintLoss(Callback):
    def on_step_end(self, trainer, loss):
        print(f"step {trainer.step} loss {loss:.7f}")


class WeightAverage(Callback):
    """Keeps an exponential average of all weights."""

    def __init__(self, decay=0.9):
        self.decay = decay

    def on_fit_start(self, trainer):
        self.average = dict(trainer.model.state_dict())

    @torch.no_grad()
    def on_step_end(self, trainer, loss):
        for name, weight in trainer.model.state_dict().items():
            self.average[name].mul_(self.decay).add_(weight, alpha=1 - self.decay)
