import numpy as np


class Pendulums:
    """A row of damped pendulums; the observation is a fresh array each step."""

    def __init__(self, n, seed):
        self.rng = np.random.default_rng(seed)
        self.state = np.zeros((n, 2), dtype=np.float32)

    def reset(self):
        self.state = self.rng.uniform(-1, 1, self.state.shape).astype(np.float32)
        return self.state.copy()

    def step(self, action):
        angle, speed = self.state[:, 0], self.state[:, 1]
        speed = speed + 0.1 * (np.sin(angle) + (action - 1)) - 0.01 * speed
        self.state = np.stack([angle + 0.1 * speed, speed], 1).astype(np.float32)
        return self.state.copy(), -np.abs(self.state[:, 0])
