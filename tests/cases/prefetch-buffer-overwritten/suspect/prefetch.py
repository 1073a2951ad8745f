import queue
import threading

import numpy as np
import torch


def source(n, seed):
    gen = torch.Generator().manual_seed(seed)
    for _ in range(n):
        yield torch.randn(64, 20, generator=gen).numpy(), torch.randint(0, 5, (64,), generator=gen).numpy()


class Prefetcher:
    """Fills staging buffers on a thread while the trainer works on another one."""

    def __init__(self, n, seed, depth=2):
        self.stages = [(np.zeros((64, 20), np.float32), np.zeros(64, np.int64)) for _ in range(depth)]
        self.ready = queue.Queue(maxsize=depth)
        threading.Thread(target=self._fill, args=(n, seed), daemon=True).start()

    def _fill(self, n, seed):
        for i, (x, y) in enumerate(source(n, seed)):
            inputs, labels = self.stages[i % len(self.stages)]
            inputs[:] = x
            labels[:] = y
            self.ready.put(i % len(self.stages))
        self.ready.put(None)

    def __iter__(self):
        while (slot := self.ready.get()) is not None:
            inputs, labels = self.stages[slot]
            yield torch.from_numpy(inputs), torch.from_numpy(labels)
