import torch
import torch.nn as nn
import torch.nn.functional as F

ACCUM = 2


def main():
    torch.manual_seed(311)
    net = nn.Sequential(nn.Linear(12, 32), nn.Mish(), nn.LayerNorm(32), nn.Linear(32, 4))
    opt = torch.optim.AdamW(net.parameters(), lr=2e-3)
    sched = torch.optim.lr_scheduler.LinearLR(opt, start_factor=0.25, total_iters=4)
    g = torch.Generator().manual_seed(312)
    x, y = torch.randn(48, 12, generator=g), torch.randint(0, 4, (48,), generator=g)
    shown = 0.0
    for micro in range(12):
        rows = slice(4 * micro, 4 * micro + 4)
        loss = F.cross_entropy(net(x[rows]), y[rows])
        (loss / ACCUM).backward()
        shown += loss.item() / ACCUM
        if micro % ACCUM == ACCUM - 1:
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            opt.step()
            sched.step()
            opt.zero_grad()
            print(f"step {micro // ACCUM} loss {shown:.7f}")
            shown = 0.0


if __name__ == "__main__":
    main()
