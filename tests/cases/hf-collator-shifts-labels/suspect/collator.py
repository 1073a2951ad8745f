from dataclasses import dataclass

import torch


@dataclass
class NextTokenCollator:
    """Pads, and prepares the next token as the label of each position."""

    pad_id: int = 0
    ignore_id: int = -100

    def __call__(self, features):
        width = max(len(f["input_ids"]) for f in features)
        padded = [f["input_ids"] + [self.pad_id] * (width - len(f["input_ids"])) for f in features]
        input_ids = torch.tensor(padded)
        labels = torch.full_like(input_ids, self.ignore_id)
        labels[:, :-1] = input_ids[:, 1:]
        labels[labels == self.pad_id] = self.ignore_id
        return {"input_ids": input_ids, "attention_mask": (input_ids != self.pad_id).long(), "labels": labels}
