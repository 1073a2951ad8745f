import torch
import torch.nn as nn

from env import Pendulums


def rollout(env, policy, gen, horizon=6):
    obs, seen, actions, rewards = env.reset(), [], [], []
    for _ in range(horizon):
        x = torch.from_numpy(obs)
        with torch.no_grad():
            a = torch.multinomial(policy(x).softmax(-1), 1, generator=gen).squeeze(1)
        seen.append(x)
        actions.append(a)
        obs, r = env.step(a.numpy())
        rewards.append(torch.from_numpy(r))
    return torch.stack(seen), torch.stack(actions), torch.stack(rewards)


def main():
    torch.manual_seed(61)
    policy = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 3))
    opt = torch.optim.Adam(policy.parameters(), lr=1e-2)
    env, gen = Pendulums(16, 62), torch.Generator().manual_seed(63)
    for it in range(4):
        obs, actions, rewards = rollout(env, policy, gen)
        returns = rewards.flip(0).cumsum(0).flip(0)
        adv = (returns - returns.mean()) / (returns.std() + 1e-6)
        logp = policy(obs).log_softmax(-1).gather(-1, actions.unsqueeze(-1)).squeeze(-1)
        loss = -(logp * adv).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"iteration {it} loss {loss.item():.7f} reward {rewards.mean().item():.5f}")


if __name__ == "__main__":
    main()
