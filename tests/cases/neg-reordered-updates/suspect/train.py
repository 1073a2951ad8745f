import argparse

import torch
import torch.nn.functional as F

from wavenet import Net

p = argparse.ArgumentParser()
p.add_argument("--clip", type=float, default=0.5)
args = p.parse_args()


def groups(net):
    """One group per layer, last layer first; vectors are not decayed."""
    for layer in reversed([m for m in net.modules() if list(m.parameters(recurse=False))]):
        for q in layer.parameters(recurse=False):
            yield {"params": [q], "weight_decay": 0.1 if q.dim() > 1 else 0.0, "lr": 2e-3}


def clip(order, limit):
    total = sum(q.grad.square().sum() for q in order)
    scale = torch.clamp(limit / torch.sqrt(total), max=1.0)
    for q in reversed(order):
        q.grad.mul_(scale)
    return scale


torch.manual_seed(181)
net = Net()
# the same order of summation as a module tree with all convolutions before all norms
order = [*net.stem.parameters(), *(q for b in net.blocks for q in b.conv.parameters()),
         *(q for b in net.blocks for q in b.norm.parameters()), *net.head.parameters()]
opt = torch.optim.AdamW(list(groups(net)), foreach=True)
gen = torch.Generator().manual_seed(182)
for step in range(5):
    x, y = torch.randn(8, 2, 30, generator=gen), torch.randint(0, 4, (8,), generator=gen)
    opt.zero_grad(set_to_none=step % 2 == 0)
    loss = F.cross_entropy(net(x), y)
    loss.backward()
    scale = clip(order, args.clip)
    opt.step()
    print(f"step {step} loss {loss.item():.7f} clip {scale.item():.4f} largest {max(q.abs().max().item() for q in order):.4f}")
