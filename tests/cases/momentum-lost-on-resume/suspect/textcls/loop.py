import torch
import torch.nn.functional as F

from .net import TextCNN


class Session:
    """Model, optimizer and the number of finished steps."""

    def __init__(self, seed=11):
        torch.manual_seed(seed)
        self.model = TextCNN()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=4e-3, weight_decay=0.02)

    @property
    def app(self):
        return {"model": self.model, "optimizer": self.optimizer}

    def step(self, ids, labels):
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(ids), labels)
        loss.backward()
        self.optimizer.step()
        return loss.item()
