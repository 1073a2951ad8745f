import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class AddNoise:
    def __init__(self, scale):
        self.scale = scale

    def __call__(self, image):
        noise = np.random.normal(0, self.scale, image.shape).astype(np.float32)
        return torch.from_numpy(image) + torch.from_numpy(noise)


class Shapes(Dataset):
    def __init__(self, n=24, transform=None):
        self.images = np.random.default_rng(1).random((n, 1, 10, 10), dtype=np.float32)
        self.transform = transform

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return self.transform(self.images[i]), i % 3


def seed_worker(worker_id):
    """Each worker draws its own noise."""
    np.random.seed(worker_id)


def make_loader():
    return DataLoader(Shapes(transform=AddNoise(0.1)), batch_size=8, num_workers=2, worker_init_fn=seed_worker)
