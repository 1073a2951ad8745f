"""Pads a batch of token lists; labels of padding are ignored by the loss."""

import torch

PAD, IGNORED = 0, -100


class Collator:
    def __call__(self, rows):
        width = max(len(row["input_ids"]) for row in rows)
        ids = torch.full((len(rows), width), PAD)
        labels = torch.full((len(rows), width), IGNORED)
        mask = torch.zeros(len(rows), width, dtype=torch.long)
        for index, row in enumerate(rows):
            length = len(row["input_ids"])
            ids[index, :length] = torch.tensor(row["input_ids"])
            labels[index, :length] = ids[index, :length]
            mask[index, :length] = 1
        return {"input_ids": ids, "labels": labels, "attention_mask": mask}
