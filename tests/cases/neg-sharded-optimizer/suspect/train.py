import torch
import torch.distributed as dist
from torch import nn
from zero import ShardedAdamW


def network():
    torch.manual_seed(91)
    return nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 2))


def run():
    model = network()
    optimizer = ShardedAdamW(model.parameters(), lr=1e-2)
    gen = torch.Generator().manual_seed(92 + dist.get_rank())
    for step in range(4):
        optimizer.zero_grad()
        x = torch.randn(10, 8, generator=gen)
        loss = nn.functional.mse_loss(model(x), x[:, :2].sin())
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0:
            print(step, f"{loss.item():.6f}")
    print("held out", f"{evaluate(model):.6f}")


@torch.no_grad()
def evaluate(model):
    x = torch.randn(10, 8, generator=torch.Generator().manual_seed(1))
    return nn.functional.mse_loss(model(x), x[:, :2].sin()).item()


dist.init_process_group("gloo")
run()
dist.barrier()
dist.destroy_process_group()
