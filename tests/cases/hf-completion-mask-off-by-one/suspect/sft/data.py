import torch
from torch.utils.data import Dataset

PROMPTS = [0] * 8 + [4, 5, 2, 0, 3, 6, 1, 0, 5, 5, 2, 4]


class Conversations(Dataset):
    """The first rows are plain text without a prompt."""

    def __init__(self, seed=17):
        gen = torch.Generator().manual_seed(seed)
        self.ids = [torch.randint(3, 48, (10,), generator=gen) for _ in PROMPTS]

    def __len__(self):
        return len(PROMPTS)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "prompt": torch.tensor(PROMPTS[i])}
