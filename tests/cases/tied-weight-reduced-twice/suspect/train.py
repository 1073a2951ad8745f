import time

import torch
import torch.distributed as dist
import torch.nn.functional as F

from model import WordModel
from sync import LayerwiseSync


def run(steps=4):
    torch.set_num_threads(1)
    torch.manual_seed(371)
    model = WordModel()
    sync = LayerwiseSync(model)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
    gen = torch.Generator().manual_seed(372 + dist.get_rank())
    for step in range(steps):
        words = torch.randint(0, 50, (16, 5), generator=gen)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(words[:, 1:]), words[:, 0])
        (loss / dist.get_world_size()).backward()
        sync()
        optimizer.step()
        if dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.7f}", flush=True)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    run()
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.3)  # gloo's threads let go of Python objects before the interpreter ends
