import torch

from dqn import Agent


def main():
    torch.manual_seed(240)
    agent = Agent()
    replay = torch.randn(64, 4), torch.randint(0, 2, (64,)), torch.randn(64), torch.randn(64, 4)
    gen = torch.Generator().manual_seed(241)
    for step in range(7):
        pick = torch.randint(0, 64, (12,), generator=gen)
        print(step, f"{agent.learn(*(part[pick] for part in replay)):.9g}")
        if (step + 1) % 3 == 0:
            agent.sync()


if __name__ == "__main__":
    main()
