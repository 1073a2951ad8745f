import torch


def stored_weights(vocab=40, dim=24, hidden=48, seed=6):
    """An export of another framework: every matrix is (in, out)."""
    g = torch.Generator().manual_seed(seed)
    r = lambda *shape: torch.randn(*shape, generator=g) * 0.2
    out = {"embed": r(vocab, dim)}
    for i in range(2):
        out |= {f"h{i}/attn/qkv": r(dim, 3 * dim), f"h{i}/attn/proj": r(dim, dim), f"h{i}/mlp/up": r(dim, hidden), f"h{i}/mlp/down": r(hidden, dim)}
    return out | {"head": r(dim, vocab)}
