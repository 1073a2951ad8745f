from agent import Agent
from vecenv import SharedPendulums

agent, env = Agent(61), SharedPendulums(16, 62)
for it in range(4):
    loss, reward = agent.learn(agent.collect(env))
    print(f"iteration {it} loss {loss:.7f} reward {reward:.5f}")
