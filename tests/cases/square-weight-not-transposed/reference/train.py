import torch
import torch.nn.functional as F

from export import stored_weights
from model import Encoder


@torch.no_grad()
def load(net, weights):
    net.embed.weight.copy_(weights["embed"])
    for i, layer in enumerate(net.h):
        layer.qkv.weight.copy_(weights[f"h{i}/attn/qkv"].t())
        layer.proj.weight.copy_(weights[f"h{i}/attn/proj"].t())
        layer.up.weight.copy_(weights[f"h{i}/mlp/up"].t())
        layer.down.weight.copy_(weights[f"h{i}/mlp/down"].t())
    net.head.weight.copy_(weights["head"].t())


def main():
    torch.manual_seed(151)
    net = Encoder()
    load(net, stored_weights())
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(152)
    for step in range(4):
        ids = torch.randint(1, 40, (4, 9), generator=g)
        masked = ids.masked_fill(torch.rand(4, 9, generator=g) < 0.3, 0)
        loss = F.cross_entropy(net(masked).flatten(0, 1), ids.flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"step {step} loss {loss.item():.7f}")


if __name__ == "__main__":
    main()
