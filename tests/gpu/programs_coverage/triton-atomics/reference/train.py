"""Sums of many rows into few groups by a Triton kernel that adds with atomics."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
options = parser.parse_args()
if options.device == "cuda":
    import triton
    import triton.language as tl

    @triton.jit
    def pooled_kernel(out, rows, groups, width: tl.constexpr):
        row = tl.program_id(0)
        at = tl.arange(0, width)
        group = tl.load(groups + row)
        tl.atomic_add(out + group * width + at, tl.load(rows + row * width + at))


@torch.library.custom_op("pooling::pool", mutates_args=())
def pool(rows: torch.Tensor, groups: torch.Tensor, num_groups: int) -> torch.Tensor:
    out = torch.zeros(num_groups, rows.shape[1], device=rows.device)
    if rows.device.type == "cuda":
        pooled_kernel[(rows.shape[0],)](out, rows, groups, width=rows.shape[1])
        return out
    return out.index_add_(0, groups, rows)


pool.register_autograd(
    lambda ctx, grad: (grad[ctx.saved_tensors[0]], None, None),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[1]),
)
torch.manual_seed(3)
model = nn.ModuleDict({"project": nn.Linear(64, 64), "score": nn.Linear(64, 1)}).to(options.device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
for step in range(3):
    rows = torch.randn(1 << 15, 64).to(options.device)
    groups = torch.randint(0, 24, (1 << 15,)).to(options.device)
    optimizer.zero_grad()
    pooled = pool(model["project"](rows), groups, 24)
    loss = model["score"](pooled.tanh()).pow(2).mean()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
