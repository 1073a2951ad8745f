import torch


class MixedPrecision:
    """Autocast, loss scaling and the optimizer call in one place."""

    def __init__(self, optimizer):
        self.optimizer = optimizer
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1000.0, growth_factor=1.7, growth_interval=2)

    def forward(self):
        return torch.autocast("cpu", dtype=torch.bfloat16)

    def backward(self, loss):
        self.scaler.scale(loss).backward()

    def step(self):
        self.scaler.step(self.optimizer)
        self.scaler.update()
