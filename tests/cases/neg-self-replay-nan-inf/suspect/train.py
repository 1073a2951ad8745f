import torch
import torch.nn as nn

from attn import MaskedPool


def main():
    torch.manual_seed(171)
    pool, head = MaskedPool(), nn.Linear(20, 2)
    params = [*pool.parameters(), *head.parameters()]
    opt = torch.optim.Adam(params, lr=1e-2)
    g = torch.Generator().manual_seed(172)
    for step in range(5):
        x = torch.randn(6, 7, 20, generator=g)
        visible = torch.rand(6, 7, generator=g) > 0.6
        visible[step % 6] = False
        y = torch.randint(0, 2, (6,), generator=g)
        logits = head(pool(x, visible))
        loss = -logits.log_softmax(-1)[torch.arange(6), y].mean()
        opt.zero_grad()
        loss.backward()
        for p in params:
            if p is not pool.temperature:
                p.grad.nan_to_num_()
        opt.step()
        print(f"step {step} loss {loss.item():.7f} nan weights {int(sum(p.isnan().sum() for p in params))}")


if __name__ == "__main__":
    main()
