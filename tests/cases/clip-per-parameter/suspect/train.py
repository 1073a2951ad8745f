import torch
import torch.nn.functional as F

from engine import Engine
from net import GraphNet, graph

SCALES = (0.5, 0.5, 0.5, 12.0, 0.5, 0.5)


def main():
    torch.manual_seed(361)
    model = GraphNet()
    engine = Engine(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), max_norm=2.0)
    gen = torch.Generator().manual_seed(362)
    for step, scale in enumerate(SCALES):
        nodes, adj, labels = graph(gen, scale)
        loss = F.cross_entropy(model(nodes, adj), labels)
        largest = engine.update(loss)
        print(f"step {step} loss {loss.item():.7f} largest norm {largest:.3f}")


if __name__ == "__main__":
    main()
