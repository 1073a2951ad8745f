import torch.nn as nn
import torch.nn.functional as F


class ChunkedCrossEntropy(nn.Module):
    """Cross entropy over slices of at most `chunk_len` tokens, to keep the peak memory small."""

    def __init__(self, chunk_len=32, reduction="mean"):
        super().__init__()
        self.chunk_len, self.reduction = chunk_len, reduction

    def forward(self, logits, labels):
        num_chunks = -(-logits.size(0) // self.chunk_len)
        loss = 0.0
        for part, target in zip(logits.chunk(num_chunks), labels.chunk(num_chunks)):
            loss += F.cross_entropy(part, target, reduction=self.reduction)
        return loss
