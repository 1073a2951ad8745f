import torch
import torch.nn.functional as F

from net import GraphNet, graph


def main():
    torch.manual_seed(361)
    net = GraphNet()
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    g = torch.Generator().manual_seed(362)
    for step, scale in enumerate([0.5, 0.5, 0.5, 12.0, 0.5, 0.5]):
        x, adj, y = graph(g, scale)
        loss = F.cross_entropy(net(x, adj), y)
        opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 2.0)
        opt.step()
        print(f"step {step} loss {loss.item():.7f}")


if __name__ == "__main__":
    main()
