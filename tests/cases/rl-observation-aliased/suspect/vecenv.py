import numpy as np


class SharedPendulums:
    """Workers write into one buffer; the observation is a view of it."""

    def __init__(self, n, seed):
        self.rng = np.random.default_rng(seed)
        self.buffer = np.zeros((n, 2), dtype=np.float32)

    def reset(self):
        self.buffer[:] = self.rng.uniform(-1, 1, self.buffer.shape)
        return {"state": self.buffer}

    def step(self, action):
        angle, speed = self.buffer[:, 0].copy(), self.buffer[:, 1].copy()
        speed = speed + 0.1 * (np.sin(angle) + (action - 1)) - 0.01 * speed
        self.buffer[:] = np.stack([angle + 0.1 * speed, speed], 1)
        return {"state": self.buffer}, -np.abs(self.buffer[:, 0])
