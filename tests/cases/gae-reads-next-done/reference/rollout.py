import torch


class Env:
    """Four particles that drift; an episode ends when one leaves the box."""

    def __init__(self, n=4, seed=0):
        self.gen = torch.Generator().manual_seed(seed)
        self.n = n
        self.pos = torch.zeros(n, 3)

    def step(self, action):
        push = torch.nn.functional.one_hot(action, 3).float() - 1 / 3
        self.pos = self.pos + 0.1 * push + 0.1 * torch.randn(self.n, 3, generator=self.gen)
        done = (self.pos.abs().amax(1) > 1.1).float()
        reward = -self.pos.norm(dim=1)
        self.pos = self.pos * (1 - done)[:, None]
        return self.pos, reward, done


def gae(rewards, values, dones, gamma=0.97, lam=0.9):
    """rewards, dones: [T, N]; values: [T + 1, N]."""
    adv = torch.zeros_like(rewards)
    last = torch.zeros(rewards.size(1))
    for t in reversed(range(rewards.size(0))):
        alive = 1.0 - dones[t]
        delta = rewards[t] + gamma * values[t + 1] * alive - values[t]
        last = delta + gamma * lam * alive * last
        adv[t] = last
    return adv
