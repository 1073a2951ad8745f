import torch
import torch.nn as nn

from rollout import Env, gae

torch.manual_seed(2)
T = 8
actor = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 3))
critic = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1))
opt = torch.optim.Adam([*actor.parameters(), *critic.parameters()], lr=3e-3)
env = Env(seed=1)
obs = env.pos
for update in range(6):
    seen, acts, rewards, dones, values = [], [], [], [], []
    with torch.no_grad():
        for _ in range(T):
            action = torch.distributions.Categorical(logits=actor(obs)).sample()
            seen.append(obs)
            acts.append(action)
            values.append(critic(obs).squeeze(1))
            obs, r, d = env.step(action)
            rewards.append(r)
            dones.append(d)
        values.append(critic(obs).squeeze(1))
        values = torch.stack(values)
        adv = gae(torch.stack(rewards), values, torch.stack(dones))
    returns = adv + values[:-1]
    states = torch.stack(seen)
    logp = torch.distributions.Categorical(logits=actor(states)).log_prob(torch.stack(acts))
    loss = -(logp * adv).mean() + 0.5 * (critic(states).squeeze(2) - returns).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(update, f"{loss.item():.9g}", int(torch.stack(dones).sum()))
