import torch

from model import GPT, GPTConfig
from pretrained import fetch

max_iters = 5
learning_rate = 3e-3

state = fetch()
model = GPT(GPTConfig())
model.load_state_dict(state)
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.95))
gen = torch.Generator().manual_seed(9)

for it in range(max_iters):
    data = torch.randint(0, 50, (4, 13), generator=gen)
    loss = model(data[:, :-1], data[:, 1:])
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    print(f"iter {it} loss {loss.item():.7f}")
