import torch
import torch.nn.functional as F

from convert import import_weights
from export import stored_weights
from model import Encoder


class MaskedTokens:
    def __init__(self, seed, rate=0.3):
        self.gen, self.rate = torch.Generator().manual_seed(seed), rate

    def draw(self):
        ids = torch.randint(1, 40, (4, 9), generator=self.gen)
        return ids.masked_fill(torch.rand(4, 9, generator=self.gen) < self.rate, 0), ids


def main(steps=4):
    torch.manual_seed(151)
    model = Encoder()
    import_weights(model, stored_weights())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = MaskedTokens(152)
    for step in range(steps):
        inputs, targets = data.draw()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.7f}")


if __name__ == "__main__":
    main()
