import torch
import torch.nn as nn
from torch.distributions import Categorical

torch.manual_seed(140)
policy = nn.Sequential(nn.Linear(4, 12), nn.Tanh(), nn.Linear(12, 3))
opt = torch.optim.Adam(policy.parameters(), lr=1e-2)
world = torch.Generator().manual_seed(141)
obs = torch.zeros(5, 4)
for update in range(5):
    log_probs, rewards, entropies = [], [], []
    for t in range(6):
        dist = Categorical(logits=policy(obs))
        action = dist.sample()
        log_probs.append(dist.log_prob(action))
        entropies.append(dist.entropy())
        drift = torch.randn(5, 4, generator=world)
        obs = 0.8 * obs + 0.3 * drift
        obs[:, 0] = action.float() - 1
        rewards.append(-(obs.sum(1) - 0.5).abs())
    returns, running = [], torch.zeros(5)
    for r in reversed(rewards):
        running = r + 0.95 * running
        returns.insert(0, running)
    returns = torch.stack(returns)
    adv = returns - returns.mean(1, keepdim=True)
    loss = -(torch.stack(log_probs) * adv).mean() - 0.01 * torch.stack(entropies).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(update, loss.item().hex())
