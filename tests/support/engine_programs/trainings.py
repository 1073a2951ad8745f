"""Small trainings: forward, backward and an optimizer, as people write them."""

import copy

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tests.support.engine_programs.catalogue import program


def train(model, batches, loss_of, *, optimizer=None, before_step=None):
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for batch in batches:
        loss = loss_of(model, batch)
        loss.backward()
        if before_step is not None:
            before_step(model)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return losses, [p.detach() for p in model.parameters()]


def squares(model, batch):
    x, y = batch
    return F.mse_loss(model(x), y)


def pairs(count, *shape, out=2):
    return [(torch.randn(*shape), torch.randn(*shape[:-1], out)) for _ in range(count)]


@program
def mlp():
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.25), nn.Linear(8, 2))
    return train(net, pairs(3, 5, 4), squares)


@program
def clipped_and_accumulated():
    net = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    losses = []
    for _ in range(2):
        for x, y in pairs(2, 5, 4):
            loss = squares(net, (x, y)) / 2
            loss.backward()
            losses.append(loss.item())
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
    return losses, [p.grad for p in net.parameters()]


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x):
        batch, time, width = x.shape
        q, k, v = (part.view(batch, time, self.heads, -1).transpose(1, 2) for part in self.qkv(self.first(x)).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, time, width))
        return x + self.mlp(self.second(x))


class Gpt(nn.Module):
    def __init__(self, vocabulary=17, width=16, heads=2, layers=2, time=6, recompute=None):
        super().__init__()
        self.recompute = recompute
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(time, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens):
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x) if self.recompute is None else checkpoint(block, x, use_reentrant=self.recompute)
        return self.head(self.norm(x))


def sentences(count, vocabulary=17, time=6):
    return [torch.randint(0, vocabulary, (2, time + 1)) for _ in range(count)]


def next_token(model, tokens):
    logits = model(tokens[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


@program
def gpt():
    return train(Gpt(), sentences(2), next_token)


@program
def gpt_in_bfloat16():
    def loss_of(model, tokens):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return next_token(model, tokens)

    return train(Gpt(), sentences(2), loss_of, before_step=lambda model: nn.utils.clip_grad_norm_(model.parameters(), 1.0))


@program
def gpt_recomputed():
    return train(Gpt(recompute=False), sentences(2), next_token)


@program
def gpt_recomputed_reentrant():
    return train(Gpt(recompute=True), sentences(2), next_token)


@program
def checkpoints_with_dropout():
    net = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 4))
    x = torch.randn(2, 4, requires_grad=True)
    (checkpoint(net, x, use_reentrant=True) + checkpoint(net, x, use_reentrant=False)).sum().backward()
    return x.grad, [p.grad for p in net.parameters()]


@program
def recomputed_by_hand():
    """A backward that runs a forward again under `enable_grad`, as reversible layers do."""

    class Reversible(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight):
            ctx.save_for_backward(x, weight)
            return x + (x @ weight).tanh()

        @staticmethod
        def backward(ctx, gradient):
            x, weight = (saved.detach().requires_grad_() for saved in ctx.saved_tensors)
            with torch.enable_grad():
                y = x + (x @ weight).tanh()
            return torch.autograd.grad(y, (x, weight), gradient)

    weight = torch.randn(4, 4, requires_grad=True)
    x = torch.randn(2, 4, requires_grad=True)
    Reversible.apply(Reversible.apply(x, weight), weight).square().sum().backward()
    return x.grad, weight.grad


@program
def gradient_scaler():
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**4, growth_interval=2)
    losses = []
    for number, (x, y) in enumerate(pairs(4, 5, 4)):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = squares(net, (x, y)).float()
        scaler.scale(loss * (float("inf") if number == 1 else 1.0)).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, scaler.get_scale()


@program
def convolutions_and_batch_norms():
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Conv2d(4, 2, 3), nn.GroupNorm(1, 2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )  # fmt: skip
    made = train(net, [(torch.randn(2, 3, 8, 8), torch.randn(2, 2)) for _ in range(2)], squares)
    net.eval()
    with torch.no_grad():
        return made, net(torch.randn(2, 3, 8, 8)), list(net.buffers())


@program
def recurrent():
    net = nn.LSTM(3, 4, num_layers=2, dropout=0.5)
    head = nn.GRUCell(4, 4)
    y, (h, _) = net(torch.randn(5, 2, 3))
    packed = nn.utils.rnn.pack_padded_sequence(torch.randn(5, 2, 3), [5, 3])
    z, _ = net(packed)
    (y.sum() + head(h[0]).sum() + z.data.sum()).backward()
    return y, z.data, net.weight_hh_l0.grad, head.weight_ih.grad


@program
def encoder_layer_trained_and_evaluated():
    layer = nn.TransformerEncoderLayer(8, 2, batch_first=True)
    z = layer(torch.randn(2, 3, 8))
    z.sum().backward()
    layer.eval()
    with torch.inference_mode():
        return z, layer(torch.randn(2, 3, 8))


@program
def sparse_embedding():
    net = nn.Embedding(10, 4, sparse=True)
    bag = nn.EmbeddingBag(10, 4, mode="mean", padding_idx=0)
    optimizer = torch.optim.SparseAdam(net.parameters())
    for _ in range(2):
        (net(torch.tensor([1, 3, 3])).square().sum() + bag(torch.tensor([[1, 0, 3]])).square().sum()).backward()
        optimizer.step()
        optimizer.zero_grad()
    return net.weight.detach(), bag.weight.grad


@program
def average_of_weights_and_reload():
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    average = torch.optim.swa_utils.AveragedModel(net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    optimizer = torch.optim.AdamW(net.parameters())
    for x, y in pairs(2, 5, 4, out=4):
        squares(net, (x, y)).backward()
        optimizer.step()
        optimizer.zero_grad()
        average.update_parameters(net)
    other = copy.deepcopy(net)
    other.load_state_dict({name: value * 2 for name, value in net.state_dict().items()})
    again = torch.optim.AdamW(other.parameters())
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    squares(other, pairs(1, 5, 4, out=4)[0]).backward()
    again.step()
    return [p.detach() for p in other.parameters()], list(average.parameters())


@program
def evaluated_in_between():
    net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))
    optimizer = torch.optim.RMSprop(net.parameters())
    seen = []
    for x, y in pairs(3, 5, 4):
        net.train()
        squares(net, (x, y)).backward()
        optimizer.step()
        optimizer.zero_grad()
        net.eval()
        with torch.no_grad():
            seen.append(squares(net, (x, y)).item())
        with torch.inference_mode():
            seen.append(net(x).argmax(-1).tolist())
    return seen


@program
def two_models_that_compete():
    maker, judge = nn.Linear(3, 4), nn.Sequential(nn.Linear(4, 4), nn.LeakyReLU(0.2), nn.Linear(4, 1))
    of_maker, of_judge = torch.optim.Adam(maker.parameters()), torch.optim.Adam(judge.parameters())
    seen = []
    for _ in range(2):
        made = maker(torch.randn(5, 3))
        loss = F.softplus(judge(made.detach())).mean() + F.softplus(-judge(torch.randn(5, 4))).mean()
        loss.backward()
        of_judge.step()
        of_judge.zero_grad()
        for p in judge.parameters():
            p.requires_grad_(False)
        other = F.softplus(-judge(made)).mean()
        other.backward()
        of_maker.step()
        of_maker.zero_grad()
        for p in judge.parameters():
            p.requires_grad_(True)
        seen += [loss.item(), other.item()]
    return seen


@program
def weight_norm_and_spectral_norm():
    net = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), nn.utils.parametrizations.spectral_norm(nn.Linear(4, 2)))
    return train(net, pairs(2, 5, 4), squares)


@program(steps=(1, 3))
def a_window_of_steps():
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    return train(net, pairs(5, 5, 4), squares)


@program(steps=(2, 3))
def a_late_window_with_buffers_and_views():
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    shadow = torch.empty(16)
    batches = []
    for x, y in pairs(4, 5, 4):
        shadow[:8] = x.sum()
        batches.append((x + shadow[0], y))
    return train(net, batches, squares)


@program(full=True, needs=("transformers.LlamaForCausalLM",))
def llama_of_hugging_face():
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    net = LlamaForCausalLM(LlamaConfig(vocab_size=64, max_position_embeddings=32, **shape))
    net.gradient_checkpointing_enable()

    def loss_of(model, tokens):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return model(input_ids=tokens, labels=tokens).loss

    return train(net, [torch.randint(0, 64, (2, 12)) for _ in range(2)], loss_of)


@program(full=True)
def a_larger_gpt_with_many_steps():
    """Enough events for the bookkeeping of storages to be polled, and forgotten in part, several times."""
    return train(Gpt(width=32, heads=4, layers=4), sentences(4), next_token)
