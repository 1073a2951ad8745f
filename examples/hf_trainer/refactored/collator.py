"""The collator with whole tensors: cut, pad, mask."""

import torch
from torch.nn.utils.rnn import pad_sequence

PAD, IGNORED = 0, -100


class Collator:
    def __init__(self, longest: int) -> None:
        self.longest = longest

    def __call__(self, rows: list[dict]) -> dict[str, torch.Tensor]:
        ids = pad_sequence([torch.tensor(row["input_ids"][: self.longest]) for row in rows], batch_first=True, padding_value=PAD)
        position = torch.arange(ids.shape[1])
        length = torch.tensor([[min(len(row["input_ids"]), self.longest)] for row in rows])
        prompt = torch.tensor([[row["prompt"]] for row in rows])
        is_answer = (position >= prompt) & (position < length)
        return {
            "input_ids": ids,
            "attention_mask": (position < length).long(),
            "labels": ids.masked_fill(~is_answer, IGNORED),
        }
