import torch

from lm import LM, SmoothTargets

torch.manual_seed(271)
model, targets = LM(), SmoothTargets(40, 0.125)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
gen = torch.Generator().manual_seed(272)
for step, length in enumerate((6, 9, 12, 8)):
    ids = torch.randint(0, 40, (3, length + 1), generator=gen)
    optimizer.zero_grad()
    log_probs = model(ids[:, :-1]).log_softmax(-1)
    loss = -(targets(ids[:, 1:]) * log_probs).sum(-1).mean()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.6f}")
