import time

import torch
import torch.distributed as dist
import torch.nn.functional as F

from model import Wide
from parallel import GradientAverager, broadcast_weights

dist.init_process_group("gloo")
torch.set_num_threads(1)
rank = dist.get_rank()
torch.manual_seed(291 + rank)
net = Wide()
broadcast_weights(net)
averager = GradientAverager(net)
opt = torch.optim.AdamW(net.parameters(), lr=2e-3)
gen = torch.Generator().manual_seed(300 + rank)
for step in range(4):
    x, y = torch.randn(8, 14, generator=gen), torch.randint(0, 6, (8,), generator=gen)
    opt.zero_grad()
    loss = F.cross_entropy(net(x), y)
    loss.backward()
    averager.wait()
    opt.step()
    if rank == 0:
        print(f"step {step} loss {loss.item():.7f}", flush=True)
dist.barrier()
dist.destroy_process_group()
time.sleep(0.3)  # gloo's threads let go of Python objects before the interpreter ends
