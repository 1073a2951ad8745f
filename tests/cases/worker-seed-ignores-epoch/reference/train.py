import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

from net import build


class Shapes(Dataset):
    def __init__(self, n=24):
        self.images = np.random.default_rng(1).random((n, 1, 10, 10), dtype=np.float32)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        noise = np.random.normal(0, 0.1, self.images[i].shape).astype(np.float32)
        return torch.from_numpy(self.images[i]) + torch.from_numpy(noise), i % 3


def main():
    torch.manual_seed(121)
    torch.set_num_threads(1)
    net, data = build(), Shapes()
    opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    step = 0
    for epoch in range(2):

        def seed(worker, epoch=epoch):
            np.random.seed(1000 * epoch + worker)

        for x, y in DataLoader(data, batch_size=8, num_workers=2, worker_init_fn=seed):
            loss = F.cross_entropy(net(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            print(f"step {step} loss {loss.item():.7f}")
            step += 1


if __name__ == "__main__":
    main()
