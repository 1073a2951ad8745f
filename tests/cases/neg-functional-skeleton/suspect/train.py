import torch
import torch.nn as nn
from torch.func import functional_call


def init(seed):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 3))
    params = {name: p.detach().clone().requires_grad_() for name, p in net.named_parameters()}
    return net.requires_grad_(False), params


def main():
    skeleton, params = init(270)
    opt = torch.optim.AdamW(params.values(), lr=5e-3)
    gen = torch.Generator().manual_seed(271)
    for step in range(5):
        x, y = torch.randn(9, 6, generator=gen), torch.randint(0, 3, (9,), generator=gen)
        loss = nn.functional.cross_entropy(functional_call(skeleton, params, (x,)), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(step, loss.item().hex())


main()
