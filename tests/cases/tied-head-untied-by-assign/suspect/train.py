import time

import torch

from model import GPT, GPTConfig
from pretrained import fetch

max_iters = 5
learning_rate = 3e-3
log_interval = 2


def from_pretrained(state):
    with torch.device("meta"):
        net = GPT(GPTConfig())
    net.load_state_dict(state, assign=True)
    return net


def get_batch(gen):
    data = torch.randint(0, 50, (4, 13), generator=gen)
    return data[:, :-1], data[:, 1:]


model = from_pretrained(fetch())
n_params = sum(p.numel() for p in model.parameters())
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.95))
gen = torch.Generator().manual_seed(9)
t0 = time.time()
for it in range(max_iters):
    loss = model(*get_batch(gen))
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    lossf = loss.item()
    print(f"iter {it} loss {lossf:.7f}")
    if it % log_interval == 0:
        print(f"params {n_params} time {time.time() - t0:.2f}")
