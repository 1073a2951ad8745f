"""Pads a batch of token lists, cut to the longest that the model takes; the loss ignores labels of padding and of the prompt."""

import torch

PAD, IGNORED = 0, -100


class Collator:
    def __init__(self, longest):
        self.longest = longest

    def __call__(self, rows):
        width = min(self.longest, max(len(row["input_ids"]) for row in rows))
        ids = torch.full((len(rows), width), PAD)
        labels = torch.full((len(rows), width), IGNORED)
        mask = torch.zeros(len(rows), width, dtype=torch.long)
        for index, row in enumerate(rows):
            length = min(width, len(row["input_ids"]))
            ids[index, :length] = torch.tensor(row["input_ids"][:length])
            labels[index, row["prompt"] : length] = ids[index, row["prompt"] : length]
            mask[index, :length] = 1
        return {"input_ids": ids, "labels": labels, "attention_mask": mask}
