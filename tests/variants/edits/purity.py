"""Which statements have no effect but to bind names, and so which neighbours may change places. When in doubt: none."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from tests.variants.tree import dotted, names_in, nodes, only, targets

_METHODS = frozenset(
    """view reshape transpose permute contiguous size flatten unsqueeze squeeze float double half bfloat16 long int bool softmax
    log_softmax masked_fill sum mean abs exp log sqrt rsqrt pow clamp detach clone expand numel dim tolist item split chunk unbind mul
    add sub div matmul tanh sigmoid relu triu tril repeat repeat_interleave amax amin argmax cumsum gather index_select new_zeros
    type_as expand_as view_as t max min norm isfinite lower upper strip format keys values items get""".split()
)
_FUNCTIONS = frozenset(
    """torch.arange torch.ones torch.zeros torch.tensor torch.full torch.matmul torch.where torch.cat torch.stack torch.tril
    torch.triu torch.exp torch.rsqrt torch.sqrt torch.softmax torch.einsum torch.finfo torch.zeros_like torch.ones_like
    torch.full_like torch.logsumexp torch.bmm torch.sigmoid torch.tanh torch.relu torch.cos torch.sin torch.outer torch.linspace
    torch.log torch.log_softmax torch.gather torch.argmax torch.topk torch.sort torch.argsort torch.cumsum torch.clamp
    F.softmax F.linear F.relu F.gelu F.silu F.one_hot F.layer_norm F.cross_entropy F.log_softmax F.pad F.nll_loss F.mse_loss F.elu
    len range int float min max sum list tuple dict str sorted zip enumerate isinstance math.sqrt math.log math.cos math.pi""".split()
)
_MODULES = frozenset(
    """Linear LayerNorm RMSNorm Embedding GELU ReLU SiLU Tanh Sigmoid Softmax ELU Identity Conv1d Conv2d Bilinear
    GroupNorm Flatten""".split()
)
_READING_EFFECTS = ("print",)


class Purity:
    """What is known of a program's calls.

    Args:
        modules: All its files; a layer is known by what every assignment to its attribute makes.
    """

    def __init__(self, modules: Iterable[cst.Module]) -> None:
        made: dict[str, set[str]] = {}
        for module in modules:
            for assign in nodes(module, cst.Assign):
                target = assign.targets[0].target
                if isinstance(target, cst.Attribute) and dotted(target).startswith("self."):
                    kind = dotted(assign.value.func) if isinstance(assign.value, cst.Call) else ""
                    made.setdefault(target.attr.value, set()).add(kind.rpartition(".")[2] if kind.startswith(("nn.", "torch.nn.")) else "?")
        self._layers = {name for name, kinds in made.items() if kinds <= _MODULES}

    def pure(self, expression: cst.BaseExpression) -> bool:
        """Whether evaluating it changes nothing and draws nothing."""
        if (
            nodes(expression, cst.Lambda)
            or nodes(expression, cst.Await)
            or nodes(expression, cst.Yield)
            or nodes(expression, cst.NamedExpr)
        ):
            return False
        return all(self._pure_call(call) for call in nodes(expression, cst.Call))

    def _pure_call(self, call: cst.Call) -> bool:
        name = dotted(call.func)
        if name in _FUNCTIONS:
            return True
        if not isinstance(call.func, cst.Attribute):
            return False
        method = call.func.attr.value
        if name.startswith("self.") and name.count(".") == 1:
            return method in self._layers
        if name.startswith(("torch.", "F.", "nn.", "dist.", "random.", "np.")):
            return False
        return method in _METHODS

    def independent(self, first: cst.BaseStatement, second: cst.BaseStatement) -> bool:
        """Whether two neighbours may change places."""
        if isinstance(first, cst.FunctionDef) and isinstance(second, cst.FunctionDef):
            return not any(self._evaluates(function) for function in (first, second)) and first.name.value != second.name.value
        bound = [targets(first), targets(second)]
        pure = [bool(names) and self._assigns_pure(line) for names, line in zip(bound, (first, second), strict=True)]
        if all(pure):
            used = [names_in(first), names_in(second)]
            return not set(bound[0]) & used[1] and not set(bound[1]) & used[0]
        for mine, other in ((0, 1), (1, 0)):
            line, neighbour = (first, second) if mine == 0 else (second, first)
            if pure[mine] and self._only_prints(neighbour):
                return not set(bound[mine]) & names_in(neighbour)
            if self._clears_gradients(line) and bound[other] and self._reads_no_gradient(neighbour):
                return not names_in(line) & set(bound[other])
        return False

    def _assigns_pure(self, line: cst.BaseStatement) -> bool:
        small = only(line)
        return isinstance(small, cst.Assign) and self.pure(small.value)

    def _only_prints(self, line: cst.BaseStatement) -> bool:
        small = only(line)
        if not isinstance(small, cst.Expr) or not isinstance(small.value, cst.Call) or dotted(small.value.func) not in _READING_EFFECTS:
            return False
        return all(self.pure(argument.value) for argument in small.value.args)

    @staticmethod
    def _clears_gradients(line: cst.BaseStatement) -> bool:
        small = only(line)
        return isinstance(small, cst.Expr) and isinstance(small.value, cst.Call) and dotted(small.value.func).endswith(".zero_grad")

    def _reads_no_gradient(self, line: cst.BaseStatement) -> bool:
        """Whether a statement only computes a batch or a loss by calls that are known not to touch gradients."""
        small = only(line)
        if not isinstance(small, cst.Assign) or any(read.attr.value == "grad" for read in nodes(small, cst.Attribute)):
            return False
        return all(self._pure_call(call) or dotted(call.func) in ("model", "net", "torch.randint") for call in nodes(small.value, cst.Call))

    @staticmethod
    def _evaluates(function: cst.FunctionDef) -> bool:
        """Whether defining a function runs something."""
        return bool(function.decorators) or bool(nodes(function.params, cst.Call))
