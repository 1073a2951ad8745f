import torch
import torch.nn as nn


class Rollout:
    def __init__(self):
        self.obs, self.actions, self.rewards = [], [], []

    def add(self, obs, action, reward):
        self.obs.append(obs)
        self.actions.append(action)
        self.rewards.append(torch.from_numpy(reward))

    def tensors(self):
        states = torch.stack(self.obs)
        return states, torch.stack(self.actions), torch.stack(self.rewards)


class Agent:
    def __init__(self, seed):
        torch.manual_seed(seed)
        self.policy = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 3))
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=1e-2)
        self.gen = torch.Generator().manual_seed(seed + 2)

    @torch.no_grad()
    def act(self, obs):
        probs = self.policy(obs).softmax(-1)
        return torch.multinomial(probs, 1, generator=self.gen).squeeze(1)

    def collect(self, env, horizon=6):
        buffer, obs = Rollout(), env.reset()
        for _ in range(horizon):
            state = torch.from_numpy(obs["state"])
            action = self.act(state)
            obs, reward = env.step(action.numpy())
            buffer.add(state, action, reward)
        return buffer

    def learn(self, buffer):
        states, actions, rewards = buffer.tensors()
        returns = rewards.flip(0).cumsum(0).flip(0)
        advantage = (returns - returns.mean()) / (returns.std() + 1e-6)
        logp = self.policy(states).log_softmax(-1).gather(-1, actions.unsqueeze(-1)).squeeze(-1)
        loss = -(logp * advantage).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item(), rewards.mean().item()
