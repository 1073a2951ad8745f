"""One file trains a small GPT: settings at the top, `--name=value` on the command line overrides one of them.

AdamW with and without decay, cosine schedule with warm-up, gradient accumulation, clipping, bfloat16 autocast on the CPU.
The loss has a backward of its own, which needs no second copy of the logits.
"""

import contextlib
import math
import sys

import torch
from torch import nn
from torch.nn import functional as F

# settings
n_layer, n_head, n_embd, block_size, vocab_size = 2, 2, 32, 24, 48
dropout = 0.1
batch_size, gradient_accumulation_steps, max_iters = 4, 2, 6
learning_rate, min_lr, warmup_iters, weight_decay, grad_clip = 3e-3, 3e-4, 2, 0.1, 1.0
dtype, seed, compile = "bfloat16", 1337, False
for argument in sys.argv[1:]:
    name, value = argument.removeprefix("--").split("=")
    globals()[name] = value == "True" if isinstance(globals()[name], bool) else type(globals()[name])(value)


class TokenLoss(torch.autograd.Function):
    """Mean cross entropy over the targets that are not -1; backward makes the gradient from the saved probabilities."""

    @staticmethod
    def forward(ctx, logits, targets):
        log_probs = F.log_softmax(logits.float(), dim=-1)
        ctx.save_for_backward(log_probs.exp(), targets)
        valid = targets != -1
        picked = log_probs.gather(1, targets.clamp(min=0)[:, None])[:, 0]
        return -(picked * valid).sum() / valid.sum()

    @staticmethod
    def backward(ctx, grad_output):
        probs, targets = ctx.saved_tensors
        valid = targets != -1
        grad = probs.scatter_add(1, targets.clamp(min=0)[:, None], -torch.ones_like(probs[:, :1]))
        scale = valid.float() / valid.sum()
        return grad * (scale * grad_output)[:, None], None


class CausalSelfAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.c_attn = nn.Linear(n_embd, 3 * n_embd, bias=False)
        self.c_proj = nn.Linear(n_embd, n_embd, bias=False)

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(n_embd, dim=2)
        k = k.view(B, T, n_head, C // n_head).transpose(1, 2)
        q = q.view(B, T, n_head, C // n_head).transpose(1, 2)
        v = v.view(B, T, n_head, C // n_head).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout if self.training else 0.0, is_causal=True)
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1 = nn.LayerNorm(n_embd)
        self.attn = CausalSelfAttention()
        self.ln_2 = nn.LayerNorm(n_embd)
        self.c_fc = nn.Linear(n_embd, 4 * n_embd, bias=False)
        self.c_proj = nn.Linear(4 * n_embd, n_embd, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.dropout(self.c_proj(F.gelu(self.c_fc(self.ln_2(x)))))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(vocab_size, n_embd)
        self.wpe = nn.Embedding(block_size, n_embd)
        self.drop = nn.Dropout(dropout)
        self.h = nn.ModuleList([Block() for _ in range(n_layer)])
        self.ln_f = nn.LayerNorm(n_embd)
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)
        self.wte.weight = self.lm_head.weight
        self.apply(self._init_weights)
        for name, p in self.named_parameters():
            if name.endswith("c_proj.weight"):
                nn.init.normal_(p, mean=0.0, std=0.02 / math.sqrt(2 * n_layer))

    def _init_weights(self, module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, mean=0.0, std=0.02)

    def forward(self, idx, targets):
        pos = torch.arange(idx.size(1))
        x = self.drop(self.wte(idx) + self.wpe(pos))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return TokenLoss.apply(logits.view(-1, vocab_size), targets.reshape(-1))


def documents(count=40):
    """Arithmetic progressions modulo the vocabulary; one document in eight is short and padded with -1."""
    generator = torch.Generator().manual_seed(7)
    start = torch.randint(vocab_size, (count, 1), generator=generator)
    stride = torch.randint(1, 6, (count, 1), generator=generator)
    tokens = (start + stride * torch.arange(block_size + 1)) % vocab_size
    targets = tokens[:, 1:].clone()
    for row in range(28, count, 8):
        targets[row, block_size // 2 :] = -1
    return tokens[:, :-1], targets


inputs, targets = documents()
position = 0


def get_batch():
    global position
    rows = torch.arange(position, position + batch_size) % len(inputs)
    position += batch_size
    return inputs[rows], targets[rows]


def get_lr(it):
    if it < warmup_iters:
        return learning_rate * (it + 1) / warmup_iters
    ratio = (it - warmup_iters) / (max_iters - warmup_iters)
    return min_lr + 0.5 * (1.0 + math.cos(math.pi * ratio)) * (learning_rate - min_lr)


torch.manual_seed(seed)
ctx = torch.amp.autocast("cpu", dtype=torch.bfloat16) if dtype == "bfloat16" else contextlib.nullcontext()
model = GPT()
if compile:
    model = torch.compile(model)
params = [p for p in model.parameters() if p.requires_grad]
groups = [
    {"params": [p for p in params if p.dim() >= 2], "weight_decay": weight_decay},
    {"params": [p for p in params if p.dim() < 2], "weight_decay": 0.0},
]
optimizer = torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.95))

X, Y = get_batch()
for iter_num in range(max_iters):
    lr = get_lr(iter_num)
    for group in optimizer.param_groups:
        group["lr"] = lr
    for _ in range(gradient_accumulation_steps):
        with ctx:
            loss = model(X, Y) / gradient_accumulation_steps
        X, Y = get_batch()  # prefetched while the model works
        loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    print(f"iter {iter_num}: loss {loss.item() * gradient_accumulation_steps:.4f}, norm {norm.item():.4f}, lr {lr:.6f}")
