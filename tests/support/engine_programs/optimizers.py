"""Optimizers of torch, in each of their ways to compute."""

import ctypes

import torch
from torch import nn
from torch.nn import functional as F

from tests.support.engine_programs.catalogue import program


def stepped(make, **options):
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    optimizer = make(net.parameters(), **options)
    for _ in range(2):
        F.mse_loss(net(torch.randn(5, 4)), torch.randn(5, 2)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return [p.detach() for p in net.parameters()]


@program
def adamw_loop():
    return stepped(torch.optim.AdamW, foreach=False)


@program
def adamw_foreach():
    return stepped(torch.optim.AdamW, foreach=True, amsgrad=True, weight_decay=0.1)


@program
def adamw_fused():
    return stepped(torch.optim.AdamW, fused=True)


@program
def sgd_foreach():
    return stepped(torch.optim.SGD, foreach=True, lr=0.1, momentum=0.9)


@program
def sgd_fused():
    return stepped(torch.optim.SGD, fused=True, lr=0.1, momentum=0.9)


@program
def others():
    makers = (torch.optim.Adagrad, torch.optim.RMSprop, torch.optim.NAdam, torch.optim.RAdam, torch.optim.Adafactor, torch.optim.Adamax)
    return [stepped(make, foreach=foreach) for make in makers for foreach in (False, True)]


@program
def adagrad_fused():
    return stepped(torch.optim.Adagrad, fused=True)


@program
def capturable_state_in_tensors():
    return stepped(torch.optim.AdamW, lr=torch.tensor(1e-2), foreach=False)


@program
def lbfgs_with_a_closure():
    net = nn.Linear(3, 1)
    x, y = torch.randn(6, 3), torch.randn(6, 1)
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=4, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        loss = F.mse_loss(net(x), y)
        loss.backward()
        return loss

    return [optimizer.step(closure).item() for _ in range(2)], [p.detach() for p in net.parameters()]


@program
def an_optimizer_of_the_program():
    class Lion(torch.optim.Optimizer):
        def __init__(self, parameters, lr=1e-3):
            super().__init__(parameters, {"lr": lr})

        @torch.no_grad()
        def step(self, closure=None):
            for group in self.param_groups:
                for p in group["params"]:
                    momentum = self.state[p].setdefault("momentum", torch.zeros_like(p))
                    p.add_(momentum.mul(0.9).add(p.grad, alpha=0.1).sign_(), alpha=-group["lr"])
                    momentum.lerp_(p.grad, 0.01)

    return stepped(Lion)


@program
def updated_by_hand():
    weight = torch.randn(4, 2, requires_grad=True)
    for _ in range(2):
        (torch.randn(3, 4) @ weight).square().mean().backward()
        with torch.no_grad():
            weight -= 0.1 * weight.grad
            weight.grad.zero_()
    return weight.detach()


@program
def updated_by_a_hook_of_backward():
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in net.parameters()}

    def update(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for p in net.parameters():
        p.register_post_accumulate_grad_hook(update)
    for _ in range(2):
        F.mse_loss(net(torch.randn(5, 4)), torch.randn(5, 2)).backward()
    return [p.detach() for p in net.parameters()]


@program
def groups_and_schedules():
    net = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 2))
    groups = [{"params": net[0].parameters(), "weight_decay": 0.1}, {"params": net[1].parameters(), "lr": 1e-2}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)
    for _ in range(3):
        F.mse_loss(net(torch.randn(5, 4)), torch.randn(5, 2)).backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    return [p.detach() for p in net.parameters()]


class Counting(torch.optim.Optimizer):
    """Its state holds numbers and other things besides tensors."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                state["calls"] = state.get("calls", 0) + 1
                state["size"], state["done"], state["word"], state[3] = 0.5 * state["calls"], False, "text", 4
                state["last"] = parameter.grad.clone()
                parameter.add_(parameter.grad, alpha=-group["lr"])


@program
def numbers_in_the_state():
    return stepped(Counting)


@program
def owners_that_come_and_go():
    """Names are given, taken over by others and forgotten while the training goes on."""
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 2))
    optimizer, results = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9), []
    for step in range(4):
        other = nn.Linear(2, 2)  # another model in every step, perhaps at the old one's address
        out = other(net(torch.randn(5, 4)))
        F.mse_loss(out, torch.randn(5, 2)).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        results.append(out.detach())
        if step == 1:
            net[3] = nn.Linear(6, 2)
            optimizer.add_param_group({"params": list(net[3].parameters())})
        if step == 2:
            net[1].register_buffer("running_mean", torch.ones(6))
            net[2] = nn.Sequential(nn.Identity(), nn.Tanh())
    return results


class InNativeCode(torch.optim.Optimizer):
    """As an extension's: its step writes memory by address, and no operator and no version counter says so."""

    def __init__(self, params):
        super().__init__(params, {})

    def step(self, closure=None):
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            if not state:
                state["last"] = torch.zeros_like(parameter)
            for tensor in (parameter, state["last"]):
                ctypes.memset(torch._C._data_address(tensor), 0, tensor.nbytes // 2)


@program
def in_native_code():
    return stepped(InNativeCode)
