"""What the frames of a stack say about the phase: is an optimizer stepping, a backward running, a batch being fetched.

Read from code objects, so it needs no state that an exception could leave behind, and costs nothing once a stack is known.
"""

from __future__ import annotations

from enum import Enum
from types import CodeType


class Situation(Enum):
    """The innermost thing a stack is part of."""

    NONE = "none"
    MODULE = "module"
    FUNCTION = "function"  # forward of a custom autograd function outside modules
    ENGINE = "engine"  # the autograd engine runs nodes
    SEEDING = "seeding"  # inside autograd.backward or grad before or after the engine, or a backward that runs as one compiled graph
    RECOMPUTE = "recompute"
    OPTIMIZER = "optimizer"
    DATA = "data"
    STATE = "state"


# Where torch's own code says what happens: (end of the file name, function name).
_MARKS = {
    ("torch/autograd/graph.py", "_engine_run_backward"): Situation.ENGINE,
    ("torch/autograd/__init__.py", "backward"): Situation.SEEDING,
    ("torch/autograd/__init__.py", "grad"): Situation.SEEDING,
    ("torch/utils/checkpoint.py", "unpack_hook"): Situation.RECOMPUTE,
    ("torch/utils/checkpoint.py", "recompute_fn"): Situation.RECOMPUTE,
    ("torch/nn/modules/module.py", "_call_impl"): Situation.MODULE,
    ("torch/nn/modules/module.py", "load_state_dict"): Situation.STATE,
    ("torch/optim/optimizer.py", "load_state_dict"): Situation.STATE,
    ("torch/optim/optimizer.py", "wrapper"): Situation.OPTIMIZER,
    ("torch/utils/data/dataloader.py", "__next__"): Situation.DATA,
    ("torch/utils/data/dataloader.py", "__iter__"): Situation.DATA,
    ("torch/autograd/function.py", "apply"): Situation.FUNCTION,
    ("torch/_dynamo/compiled_autograd.py", "runtime_wrapper"): Situation.SEEDING,
}

_LAST_PARTS = 3


def _mark(code: CodeType) -> Situation | None:
    filename = code.co_filename
    if "torch" not in filename:
        return None
    parts = filename.replace("\\", "/").split("/")
    for count in (_LAST_PARTS, _LAST_PARTS + 1):
        found = _MARKS.get(("/".join(parts[-count:]), code.co_name))
        if found is not None:
            return found
    # CheckpointFunction.backward re-runs the forward of a reentrant checkpoint.
    if code.co_name == "backward" and filename.endswith("torch/utils/checkpoint.py"):
        return Situation.RECOMPUTE
    return None


def situation(codes: list[CodeType]) -> Situation:
    """Situation of a stack.

    Args:
        codes: Code objects, innermost first.
    """
    marks = [mark for mark in map(_mark, codes) if mark is not None]
    inner = Situation.NONE
    for mark in marks:
        if mark is Situation.DATA or mark is Situation.STATE:
            return mark  # a module inside a dataset or a load hook belongs to these
        if inner is Situation.NONE or inner is Situation.FUNCTION:
            inner = mark
        elif inner is Situation.MODULE:
            if mark in (Situation.ENGINE, Situation.RECOMPUTE):
                inner = Situation.RECOMPUTE
            elif mark is Situation.SEEDING:
                inner = mark  # the graph of a compiled backward is a module: nothing is computed again
    return inner
