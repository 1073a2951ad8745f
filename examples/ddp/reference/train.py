"""Two ranks under torchrun, gloo, DistributedDataParallel; gradients travel as bfloat16 with error feedback.

torchrun --nproc-per-node 2 train.py
"""

import torch
import torch.distributed as dist
from hook import FeedbackState, bf16_feedback_hook
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

CLASSES, FEATURES, STEPS, BATCH = 5, 24, 6, 8


class Net(nn.Module):
    """An MLP with BatchNorm (its buffers are broadcast from rank 0) and a running scale of its inputs."""

    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.ones(FEATURES))
        self.inner = nn.Linear(FEATURES, 64)
        self.norm = nn.BatchNorm1d(64)
        self.middle = nn.Linear(64, 64)
        self.head = nn.Linear(64, CLASSES)

    def forward(self, x):
        with torch.no_grad():
            self.scale.lerp_(x.abs().mean(0), 0.1)
        h = F.relu(self.norm(self.inner(x / self.scale)))
        return self.head(F.dropout(F.relu(self.middle(h)), 0.1, self.training))


def corpus():
    generator = torch.Generator().manual_seed(3)
    labels = torch.randint(CLASSES, (60,), generator=generator)
    centres = torch.randn(CLASSES, FEATURES, generator=generator)
    return centres[labels] + 0.5 * torch.randn(60, FEATURES, generator=generator), labels


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(17)
    net = Net()
    model = DistributedDataParallel(net, bucket_cap_mb=0.02)
    model.register_comm_hook(FeedbackState(start=2), bf16_feedback_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    torch.manual_seed(17 + rank)
    features, labels = corpus()
    per_epoch = len(features) // (BATCH * world)
    for step in range(STEPS):
        epoch, batch = divmod(step, per_epoch)
        order = torch.randperm(len(features), generator=torch.Generator().manual_seed(epoch))
        mine = order[rank::world][batch * BATCH : (batch + 1) * BATCH]
        loss = F.cross_entropy(model(features[mine]), labels[mine])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.6f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
