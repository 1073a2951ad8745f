import torch

LENGTHS = [((12, 12), (12, 12)), ((9, 6), (8, 7)), ((12, 5), (4, 3)), ((7, 2), (11, 12))]


class Shard:
    def __init__(self, rank):
        self.rank = rank

    def __len__(self):
        return len(LENGTHS)

    def __getitem__(self, step):
        gen = torch.Generator().manual_seed(100 * step + self.rank)
        ids = torch.randint(0, 60, (2, 12), generator=gen)
        tags = torch.randint(0, 7, (2, 12), generator=gen)
        for row, length in enumerate(LENGTHS[step][self.rank]):
            tags[row, length:] = -100
        return ids, tags
