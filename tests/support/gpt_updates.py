"""The second half of the made-up GPT training: backward, gradient reduction, optimizer and state boundary."""

from __future__ import annotations

from tests.support.instructions import Instruction, Out, Site

TRAIN = "train.py"

Parameters = dict[str, tuple[int, ...]]
"""Shapes by name."""


def backward(forward: list[Instruction], parameters: Parameters, microbatch: int) -> list[Instruction]:
    """Two instructions for each differentiable forward one: the gradient, and its accumulation where a parameter was read."""
    out = []
    site = Site(TRAIN, "main", 24, "loss.backward()")
    gradient = "loss"
    for step in reversed(forward):
        if step.role != "compute" or step.outs[0].dtype == "int64":
            continue
        read = [name for name in step.reads if name.startswith("p:")]
        node = f"{step.operator.split('.')[1].strip('_').title().replace('_', '')}Backward0"
        size = step.outs[0].shape
        outs = (Out("g", size), *(Out(f"gp:{name[2:]}", parameters[name[2:]]) for name in read))
        common = {"site": site, "phase": "backward", "module": step.module, "node": node}
        out.append(
            Instruction(
                step.operator.replace(".default", "_backward.default"),
                (gradient, *step.reads),
                outs,
                args=step.args,
                forward=step.key,
                **common,
            )
        )
        gradient = "g"
        out += [_accumulate(name[2:], parameters[name[2:]], step, microbatch, site) for name in read]
    return out


def _accumulate(name: str, size: tuple[int, ...], step: Instruction, microbatch: int, site: Site) -> Instruction:
    common = {"site": site, "phase": "backward", "module": step.module, "node": "AccumulateGrad", "forward": step.key}
    if microbatch == 0:
        outs = (Out(f"grad:{name}", size, effect="keep", name=name),)
        return Instruction("aten.detach_copy.default", (f"gp:{name}",), outs, **common)
    return Instruction("aten.add_.Tensor", (f"grad:{name}", f"gp:{name}"), mutates=(f"grad:{name}",), args="(1)", **common)


def reduce_gradients(parameters: Parameters) -> list[Instruction]:
    site = Site(TRAIN, "average_gradients", 60, "dist.all_reduce(p.grad)")
    return [
        Instruction(
            "c10d.allreduce_.default",
            (f"grad:{name}",),
            mutates=(f"grad:{name}",),
            site=site,
            calls=(Site(TRAIN, "main", 25, "average_gradients(model)"),),
            kind="collective",
            phase="collective",
            collective=True,
            role="collective",
        )
        for name in parameters
    ]


def fused_update(parameters: Parameters) -> list[Instruction]:
    names = list(parameters)
    lists = [f"{prefix}:{name}" for prefix in ("p", "grad", "exp_avg", "exp_avg_sq") for name in names]
    return [
        Instruction(
            "aten._fused_adamw_.default",
            tuple(lists),
            mutates=tuple(name for name in lists if not name.startswith("grad:")),
            site=Site(TRAIN, "main", 26, "optimizer.step()"),
            phase="optimizer",
            lists=4,
            args="(lr=0x1.0624dd2f1a9fcp-10)",
            role="optimizer",
        )
    ]


def single_updates(parameters: Parameters) -> list[Instruction]:
    out = []
    site = Site(TRAIN, "main", 26, "optimizer.step()")
    for name in parameters:
        p, g, m, v = (f"{prefix}:{name}" for prefix in ("p", "grad", "exp_avg", "exp_avg_sq"))
        for line, operator, reads, mutates, outs, args in (
            (401, "aten.mul_.Tensor", (p,), (p,), (), "(0x1.fffd60e94ee39p-1)"),
            (403, "aten.lerp_.Scalar", (m, g), (m,), (), "(0x1.9999999999998p-4)"),
            (405, "aten.addcmul_.default", (v, g), (v,), (), "(0x1.0624dd2f1a9fcp-10)"),
            (408, "aten.sqrt.default", (v,), (), (Out("root", parameters[name]),), ""),
            (409, "aten.addcdiv_.default", (p, m, "root"), (p,), (), "(-0x1.0624dd2f1a9fcp-10)"),
        ):
            out.append(
                Instruction(
                    operator,
                    reads,
                    outs,
                    mutates,
                    site=site,
                    library=Site("torch/optim/adamw.py", "_single_tensor_adamw", line, operator.split(".")[1], "torch"),
                    phase="optimizer",
                    args=args,
                    role="optimizer",
                )
            )
    return out


def state_boundary(parameters: Parameters) -> Instruction:
    named = [f"{prefix}:{name}" for name in parameters for prefix in ("p", "grad", "exp_avg", "exp_avg_sq")]
    return Instruction("opguard.state", tuple(named), kind="state", phase="state", ends_window=True, role="state")
