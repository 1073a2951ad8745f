import torch
import torch.distributed as dist
import torch.nn as nn

from parallel import GradientAverager


def batch(gen):
    return torch.randn(6, 8, generator=gen), torch.randint(0, 3, (6,), generator=gen)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(8)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    model[0].requires_grad_(False)
    average = GradientAverager(model)
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    gen = torch.Generator().manual_seed(80 + rank)
    for step in range(4):
        if step == 2:
            model[0].requires_grad_(True)
        x, y = batch(gen)
        opt.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        average()
        opt.step()
        print(f"rank {rank} step {step} {loss.item():.9g}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
