import torch


class Engine:
    def __init__(self, model, optimizer, max_norm):
        self.model, self.optimizer, self.max_norm = model, optimizer, max_norm

    def clip(self):
        norms = {}
        for name, param in self.model.named_parameters():
            norms[name] = torch.nn.utils.clip_grad_norm_(param, self.max_norm)
        return norms

    def update(self, loss):
        self.optimizer.zero_grad()
        loss.backward()
        norms = self.clip()
        self.optimizer.step()
        return max(n.item() for n in norms.values())
