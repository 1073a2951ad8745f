"""Model, optimizer, scheduler and a loader with workers whose rows are augmented at random."""

import torch
from torch.utils.data import DataLoader, Dataset

from opguard_core import state


class Rows(Dataset):
    def __init__(self):
        self.rows = torch.linspace(-1, 1, 18 * 5).reshape(18, 5)

    def __len__(self):
        return 18

    def __getitem__(self, index):
        return self.rows[index] + 0.1 * torch.rand(5), index % 3


class Parts:
    def __init__(self, seed):
        torch.manual_seed(seed)
        self.model = torch.nn.Sequential(torch.nn.Linear(5, 12), torch.nn.BatchNorm1d(12), torch.nn.Dropout(0.2), torch.nn.Linear(12, 3))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 8)
        generator = torch.Generator().manual_seed(seed)
        self.loader = state.ResumableLoader(DataLoader(Rows(), batch_size=4, shuffle=True, generator=generator, num_workers=2))

    def given(self):
        return {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler, "loader": self.loader}

    def run(self, first, last):
        step = first
        while step < last:
            for rows, labels in self.loader:
                self.optimizer.zero_grad()
                loss = torch.nn.functional.cross_entropy(self.model(rows), labels)
                loss.backward()
                self.optimizer.step()
                self.scheduler.step()
                print(f"step {step} loss {loss.item():.9f}")
                step += 1
                if step == last:
                    return
