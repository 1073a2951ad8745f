import torch


class Storage:
    def __init__(self, steps, envs):
        self.rewards = torch.zeros(steps, envs)
        self.returns = torch.zeros(steps, envs)
        self.actions = torch.zeros(steps, envs, dtype=torch.long)
        self.log_probs, self.entropies = [None] * steps, [None] * steps

    def put(self, t, dist, action, reward):
        self.actions[t].copy_(action)
        self.rewards[t].copy_(reward)
        self.log_probs[t] = dist.log_prob(action)
        self.entropies[t] = dist.entropy()

    def finish(self, gamma):
        running = torch.zeros_like(self.rewards[0])
        for t in range(len(self.rewards) - 1, -1, -1):
            running.mul_(gamma).add_(self.rewards[t])
            self.returns[t] = running
        return self.returns
