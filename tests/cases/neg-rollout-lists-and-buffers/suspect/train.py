import torch
import torch.nn as nn
from torch.distributions import Categorical

from storage import Storage


class World:
    def __init__(self, envs, seed):
        self.gen = torch.Generator().manual_seed(seed)
        self.obs = torch.zeros(envs, 4)

    def step(self, action):
        self.obs = 0.8 * self.obs + 0.3 * torch.randn(self.obs.shape, generator=self.gen)
        self.obs[:, 0].copy_(action.float() - 1)
        return -(self.obs.sum(1) - 0.5).abs()


def main():
    torch.manual_seed(140)
    policy = nn.Sequential(nn.Linear(4, 12), nn.Tanh(), nn.Linear(12, 3))
    opt = torch.optim.Adam(policy.parameters(), lr=1e-2)
    world, store = World(5, 141), Storage(6, 5)
    for update in range(5):
        for t in range(6):
            dist = Categorical(logits=policy(world.obs))
            action = dist.sample()
            store.put(t, dist, action, world.step(action))
        returns = store.finish(0.95)
        adv = returns - returns.mean(1, keepdim=True)
        gain = (torch.stack(store.log_probs) * adv).mean()
        bonus = 0.01 * torch.stack(store.entropies).mean()
        loss = -gain - bonus
        for p in policy.parameters():
            p.grad = None
        loss.backward()
        opt.step()
        print(update, loss.item().hex())
        if store.actions.flatten().bincount(minlength=3).max() == 30:
            print("policy collapsed")


main()
