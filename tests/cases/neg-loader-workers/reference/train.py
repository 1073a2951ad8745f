import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class Squares(Dataset):
    def __init__(self, n=36):
        self.x = torch.randn(n, 6, generator=torch.Generator().manual_seed(9))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        return self.x[i] + 0.05 * torch.randn(6, generator=g), self.x[i].square().sum()


def main():
    torch.manual_seed(301)
    torch.set_num_threads(1)
    net = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 1))
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)
    loader = DataLoader(Squares(), batch_size=12, shuffle=True)
    step = 0
    for epoch in range(2):
        for x, y in loader:
            loss = F.mse_loss(net(x).squeeze(1), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            print(f"step {step} loss {loss.item():.6f}")
            step += 1


if __name__ == "__main__":
    main()
