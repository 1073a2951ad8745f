import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

import comm


class Trainer:
    def __init__(self):
        torch.manual_seed(150)
        self.net = nn.Sequential(nn.Linear(7, 14), nn.BatchNorm1d(14), nn.ReLU(), nn.Linear(14, 3))
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.05, momentum=0.9, foreach=False)
        self.gen = torch.Generator().manual_seed(151 + dist.get_rank())

    def batch(self):
        return torch.randn(9, 7, generator=self.gen), torch.randint(0, 3, (9,), generator=self.gen)

    def step(self):
        x, y = self.batch()
        comm.sync_buffers(self.net)
        self.opt.zero_grad()
        loss = F.cross_entropy(self.net(x), y)
        loss.backward()
        comm.average_gradients(self.net)
        self.opt.step()
        return loss.detach()


def main():
    dist.init_process_group("gloo")
    trainer = Trainer()
    for step in range(4):
        loss = trainer.step()
        losses = [torch.empty_like(loss) for _ in range(dist.get_world_size())]
        dist.all_gather(losses, loss)
        if dist.get_rank() == 0:
            print(step, (sum(losses) / len(losses)).item().hex(), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
