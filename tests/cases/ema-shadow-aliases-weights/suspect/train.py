import torch
import torch.nn as nn
import torch.nn.functional as F

from callbacks import PrintLoss, WeightAverage
from data import patches


class Trainer:
    def __init__(self, model, optimizer, callbacks):
        self.model, self.optimizer, self.callbacks = model, optimizer, callbacks
        self.step = 0

    def fit(self, batches):
        for cb in self.callbacks:
            cb.on_fit_start(self)
        for self.step, (images, labels) in enumerate(batches):
            self.optimizer.zero_grad()
            loss = F.cross_entropy(self.model(images), labels)
            loss.backward()
            self.optimizer.step()
            for cb in self.callbacks:
                cb.on_step_end(self, loss.item())


torch.manual_seed(41)
net = nn.Sequential(nn.Flatten(), nn.Linear(192, 32), nn.SiLU(), nn.Linear(32, 4))
Trainer(net, torch.optim.RMSprop(net.parameters(), lr=1e-3), [WeightAverage(), PrintLoss()]).fit(patches(42))
