import torch
import torch.nn.functional as F

from net import Net


def in_order_of_definition(net):
    return list(net.named_parameters())


def in_order_of_checkpoint(net, state):
    """Parameters for the names in a checkpoint, sorted so that all ranks agree."""
    table = dict(net.named_parameters())
    return [(name, table[name]) for name in sorted(state)]


class Trainer:
    def __init__(self, net, named):
        self.net = net
        matrices = [p for _, p in named if p.dim() > 1]
        vectors = [p for _, p in named if p.dim() == 1]
        self.optimizer = torch.optim.AdamW(
            [{"params": matrices, "weight_decay": 0.05}, {"params": vectors, "weight_decay": 0.0}], lr=3e-3)

    @classmethod
    def start(cls, seed=391):
        torch.manual_seed(seed)
        net = Net()
        return cls(net, in_order_of_definition(net))

    @classmethod
    def resume(cls, saved):
        net = Net()
        net.load_state_dict(saved["net"])
        trainer = cls(net, in_order_of_checkpoint(net, saved["net"]))
        trainer.optimizer.load_state_dict(saved["optimizer"])
        return trainer

    def save(self):
        return {"net": self.net.state_dict(), "optimizer": self.optimizer.state_dict()}

    def run(self, steps):
        for step in steps:
            gen = torch.Generator().manual_seed(600 + step)
            x, y = torch.randn(12, 10, generator=gen), torch.randint(0, 5, (12,), generator=gen)
            self.optimizer.zero_grad()
            loss = F.cross_entropy(self.net(x), y)
            loss.backward()
            self.optimizer.step()
            print(f"step {step} loss {loss.item():.7f}")
