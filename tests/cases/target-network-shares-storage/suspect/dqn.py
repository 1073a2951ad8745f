import copy

import torch
import torch.nn as nn


class Agent:
    def __init__(self):
        self.online = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
        self.target = copy.deepcopy(self.online)
        self.opt = torch.optim.RMSprop(self.online.parameters(), lr=1e-3)

    def learn(self, s, a, r, s2):
        with torch.no_grad():
            best, _ = self.target(s2).max(dim=1)
            goal = r + 0.9 * best
        value = self.online(s).gather(1, a.unsqueeze(1)).squeeze(1)
        loss = nn.functional.smooth_l1_loss(value, goal)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.item()

    def sync(self):
        for t, p in zip(self.target.parameters(), self.online.parameters()):
            t.data = p.data
