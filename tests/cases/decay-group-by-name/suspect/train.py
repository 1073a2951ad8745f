import torch
import torch.nn.functional as F

import optim
from model import Net


def batches(n, seed):
    g = torch.Generator().manual_seed(seed)
    for _ in range(n):
        ids = torch.randint(0, 40, (4, 12), generator=g)
        yield ids[:, :-1], ids[:, 1:]


def main():
    torch.manual_seed(3)
    model = Net()
    opt, sched = optim.build(model, lr=2e-3, wd=0.1, betas=(0.9, 0.95))
    for step, (inputs, targets) in enumerate(batches(5, 5)):
        loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), label_smoothing=0.1)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad()
        sched.step()
        print(f"step {step} loss {loss.item():.9g}")


if __name__ == "__main__":
    main()
