import torch


class RowBuffer:
    """Grows in place; rows past `used` have never been written."""

    def __init__(self, rows, width):
        self.data = torch.empty(rows, width)
        self.used = 0

    def append(self, rows):
        n = rows.size(0)
        self.data[self.used: self.used + n] = rows
        self.used += n
        return self.data[: self.used].clone()

    def scaled_copy(self):
        return self.data * 0.5  # of the whole buffer, dead rows included


class FlatGrads:
    def __init__(self, params, align=64):
        self.params = list(params)
        self.sizes = [p.numel() for p in self.params]
        total = sum(self.sizes)
        self.buffer = torch.empty(-(-total // align) * align + align)

    def gather(self):
        at = 0
        for p, n in zip(self.params, self.sizes):
            self.buffer[at: at + n].copy_(p.grad.flatten())
            at += n
        return self.buffer[:at]
