"""Batches: loaders with and without workers, samplers, transforms on tensors."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, random_split

from tests.support.engine_programs.catalogue import program


class Rows(Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        return torch.full((2,), float(index)) * 2, index


class Endless(IterableDataset):
    def __iter__(self):
        for number in range(5):
            yield torch.randn(2) + number


def trained(loader):
    net = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for x, _ in loader:
        net(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return net.weight.detach()


@program
def loader():
    return trained(DataLoader(Rows(), batch_size=2, shuffle=True))


@program
def loader_with_workers():
    return trained(DataLoader(Rows(), batch_size=2, num_workers=2, multiprocessing_context="fork"))


@program(full=True)
def loader_with_spawned_workers():
    return trained(DataLoader(Rows(), batch_size=2, num_workers=1, multiprocessing_context="spawn", persistent_workers=True))


@program
def iterable_and_split():
    parts = random_split(TensorDataset(torch.randn(8, 2), torch.arange(8)), [5, 3])
    drawn = torch.utils.data.WeightedRandomSampler(torch.rand(5), 4)
    return (
        list(DataLoader(Endless(), batch_size=2)),
        trained(DataLoader(parts[0], batch_size=2, sampler=drawn)),
        trained(DataLoader(parts[1])),
    )
