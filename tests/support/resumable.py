"""A small training with everything that a resumed run has to get right, built twice: once to run through, once to resume."""

from __future__ import annotations

import random  # noqa: TID251  what programs use

import numpy
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, RandomSampler, Sampler

from opguard_core import state


class Augmented(Dataset):
    """Rows with noise from every generator a worker has."""

    def __init__(self, rows=22):
        self.rows = torch.arange(rows * 6, dtype=torch.float32).reshape(rows, 6) / 50

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        noise = torch.rand(6) + random.random() + float(numpy.random.rand())
        return self.rows[index] + noise, torch.tensor(index % 3)


class OwnStream(Augmented):
    """Noise from a generator of its own, which no one outside a worker sees."""

    def __init__(self, rows=22):
        super().__init__(rows)
        self.own = torch.Generator().manual_seed(5)

    def __getitem__(self, index):
        return self.rows[index] + torch.rand(6, generator=self.own), torch.tensor(index % 3)


class Telling(OwnStream):
    """As above, but it offers its state."""

    def state_dict(self):
        return {"own": self.own.get_state()}

    def load_state_dict(self, value):
        self.own.set_state(value["own"])


class Stream(torch.utils.data.IterableDataset):
    """Rows that only come one after the other."""

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for index in range(first, 22, step):
            yield torch.full((6,), float(index)) + torch.rand(6), torch.tensor(index % 3)


class Blocks(Sampler):
    """A sampler with a position of its own, drawn lazily, carried over from epoch to epoch."""

    def __init__(self, n, generator):
        self.n, self.generator, self.turn = n, generator, 0

    def __len__(self):
        return self.n

    def __iter__(self):
        for _ in range(self.n):
            self.turn = (self.turn + int(torch.randint(self.n, (), generator=self.generator))) % self.n
            yield self.turn


class Training:
    """Model, optimizer, scheduler, scaler, loader and average; ``run`` goes on from wherever it is."""

    def __init__(self, seed, *, dataset=Augmented, sampler="generator", workers=0, persistent=False, replay=None, init=None):
        torch.manual_seed(seed)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 6), torch.nn.Linear(6, 3)
        )
        self.model.register_buffer("steps_seen", torch.zeros(()), persistent=False)
        decayed = [p for p in self.model.parameters() if p.ndim > 1]
        plain = [p for p in self.model.parameters() if p.ndim == 1]
        self.optimizer = torch.optim.AdamW(
            [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0, "lr": 3e-3}], lr=1e-2, amsgrad=True
        )
        self.scheduler = torch.optim.lr_scheduler.SequentialLR(
            self.optimizer,
            [
                torch.optim.lr_scheduler.LinearLR(self.optimizer, 0.1, total_iters=4),
                torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 20),
            ],
            milestones=[4],
        )
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)
        self.average = torch.optim.swa_utils.AveragedModel(self.model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
        self.generator = torch.Generator().manual_seed(seed + 1)
        self.noise = torch.Generator().manual_seed(seed + 2)
        self.loader = state.ResumableLoader(self._loader(dataset(), sampler, workers, persistent, init), replay=replay)
        self.log = []

    def _loader(self, data, kind, workers, persistent, init):
        options = {"batch_size": 4, "num_workers": workers, "persistent_workers": persistent, "worker_init_fn": init}
        self.distributed = None
        self.owns = kind in ("generator", "replacement", "own") and not isinstance(data, torch.utils.data.IterableDataset)
        if isinstance(data, torch.utils.data.IterableDataset):
            return DataLoader(data, **options)
        if kind == "default":
            return DataLoader(data, shuffle=True, **options)
        if kind == "generator":
            return DataLoader(data, shuffle=True, generator=self.generator, **options)
        if kind == "replacement":
            drawn = RandomSampler(data, replacement=True, num_samples=38, generator=self.generator)
            return DataLoader(data, sampler=drawn, drop_last=True, **options)
        if kind == "distributed":
            self.distributed = DistributedSampler(data, num_replicas=2, rank=1, shuffle=True, seed=3)
            return DataLoader(data, sampler=self.distributed, **options)
        return DataLoader(data, sampler=Blocks(len(data), self.generator), **options)

    def parts(self):
        return {
            "model": self.model,
            "optimizer": self.optimizer,
            "scheduler": self.scheduler,
            "scaler": self.scaler,
            "loader": self.loader,
            "generators": {"noise": self.noise},
            "extra": {"average": self.average},
        }

    def run(self, steps, *, before_step=None):
        """Train until ``steps`` steps are in the log in total, epochs as they come."""
        self.model.train()
        while len(self.log) < steps:
            if self.distributed is not None:
                self.distributed.set_epoch(self.loader.epoch)
            for inputs, targets in self.loader:
                self.optimizer.zero_grad()
                outputs = self.model(inputs + 0.01 * torch.rand(6, generator=self.noise))
                loss = torch.nn.functional.cross_entropy(outputs, targets)
                self.scaler.scale(loss).backward()
                self.scaler.step(self.optimizer)
                self.scaler.update()
                self.scheduler.step()
                self.average.update_parameters(self.model)
                self.model.steps_seen += 1
                self.log.append((inputs, loss.detach().clone(), self.optimizer.param_groups[1]["lr"], torch.rand(())))
                if before_step is not None:
                    before_step(len(self.log))
                if len(self.log) == steps:
                    return

    def everything(self):
        """All that must be equal, as one nested value."""
        from opguard_core.state.streams import generator_state, process_streams

        return {
            "model": self.model.state_dict(),
            "seen": self.model.steps_seen,
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "scaler": self.scaler.state_dict(),
            "average": self.average.state_dict(),
            "noise": generator_state(self.noise, ""),
            "generator": generator_state(self.generator, "") if self.owns else None,
            "streams": process_streams(),
            "place": (self.loader.epoch, self.loader.batch),
        }
