import torch


class SmoothTargets:
    def __init__(self, vocab, smooth):
        self.low, self.high = smooth / 64, 1 - smooth + smooth / 64
        self.vocab = vocab

    def __call__(self, labels):
        full = torch.full((*labels.shape, self.vocab), self.low)
        return full.scatter(-1, labels.unsqueeze(-1), self.high)
