import torch
import torch.nn.functional as F

from model import Net


def param_groups(model, wd):
    decay = [p for p in model.parameters() if p.dim() >= 2]
    rest = [p for p in model.parameters() if p.dim() < 2]
    return [{"params": decay, "weight_decay": wd}, {"params": rest, "weight_decay": 0.0}]


def main():
    torch.manual_seed(3)
    model = Net()
    opt = torch.optim.AdamW(param_groups(model, 0.1), lr=2e-3, betas=(0.9, 0.95))
    sched = torch.optim.lr_scheduler.LinearLR(opt, 0.25, 1.0, total_iters=4)
    g = torch.Generator().manual_seed(5)
    for step in range(5):
        ids = torch.randint(0, 40, (4, 12), generator=g)
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten(), label_smoothing=0.1)
        opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        print(f"step {step} loss {loss.item():.9g}")


if __name__ == "__main__":
    main()
