import copy

import torch
import torch.nn as nn
import torch.nn.functional as F


def build():
    torch.manual_seed(111)
    net = nn.Sequential(nn.Linear(20, 48), nn.GELU(), nn.LayerNorm(48), nn.Linear(48, 48), nn.GELU(), nn.Linear(48, 3))
    opt = torch.optim.AdamW(net.parameters(), lr=2e-3, eps=1e-6)
    scaler = torch.amp.GradScaler("cpu", init_scale=1000.0, growth_factor=1.7, growth_interval=2)
    return net, opt, scaler


def run(steps, net, opt, scaler):
    for step in steps:
        g = torch.Generator().manual_seed(500 + step)
        x = torch.randn(12, 20, generator=g)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.mse_loss(net(x).float(), x[:, :3].tanh())
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        print(f"step {step} loss {loss.item():.9f}")


def main():
    parts = build()
    run(range(4), *parts)
    saved = copy.deepcopy([p.state_dict() for p in parts])
    parts = build()
    for p, s in zip(parts, saved):
        p.load_state_dict(s)
    run(range(4, 7), *parts)


if __name__ == "__main__":
    main()
