"""The settings that make a training repeat itself, as a table; imports nothing, so that anyone can show it.

``--deterministic`` applies them and the rank manifest records each before and after. Nothing here changes precision:
two runs under the same knobs still compute what their programs ask for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Knob:
    """One setting.

    Attributes:
        name: Environment variable, or path of the torch setting.
        value: What it is set to.
        why: What differs between runs without it.
        source: Where that is documented.
        when: "launch" (environment of the program's processes, before they start) or "rank" (in each rank, right after
            torch is imported).
    """

    name: str
    value: str | bool
    why: str
    source: str
    when: str


KNOBS = (
    Knob(
        "PYTHONHASHSEED",
        "0",
        "Sets of strings iterate in another order in every process, and so do sums and parameter groups built from them.",
        "Python documentation, Command line and environment",
        "launch",
    ),
    Knob(
        "CUBLAS_WORKSPACE_CONFIG",
        ":4096:8",
        "cuBLAS picks kernels and splits sums by the workspace it gets, which varies when several streams are in use.",
        "cuBLAS documentation, Results Reproducibility; torch.use_deterministic_algorithms",
        "launch",
    ),
    Knob(
        "NCCL_ALGO",
        "Ring",
        "NCCL picks the algorithm by message size and topology; each adds the ranks' values in another order.",
        "NCCL documentation, Environment variables",
        "launch",
    ),
    Knob(
        "NCCL_PROTO",
        "Simple",
        "The protocol decides how a message is cut into pieces, and with it the order of additions.",
        "NCCL documentation, Environment variables",
        "launch",
    ),
    Knob(
        "torch.use_deterministic_algorithms",
        True,
        "Scatter, index and convolution kernels add with atomics, in the order in which threads arrive. An operator that has "
        "no deterministic form warns and runs: observing must not end a training.",
        "PyTorch documentation, Reproducibility",
        "rank",
    ),
    Knob(
        "torch.utils.deterministic.fill_uninitialized_memory",
        False,
        "Filling is costly, races with communication streams, and is not needed: unwritten memory is compared by shape only.",
        "PyTorch documentation, torch.utils.deterministic; torchtitan, set_determinism",
        "rank",
    ),
    Knob(
        "torch.backends.cudnn.deterministic",
        True,
        "Some cuDNN convolution algorithms add with atomics.",
        "PyTorch documentation, Reproducibility",
        "rank",
    ),
    Knob(
        "torch.backends.cudnn.benchmark",
        False,
        "The fastest algorithm is found by timing, so another one may win in the next run.",
        "PyTorch documentation, Reproducibility",
        "rank",
    ),
    Knob(
        "torch.backends.mkldnn.deterministic",
        True,
        "oneDNN may pick kernels whose sums depend on the number of threads that happen to take part.",
        "PyTorch documentation, torch.backends.mkldnn",
        "rank",
    ),
)


def launch_environment() -> dict[str, str]:
    """Variables that have to be set before a process of the program starts."""
    return {knob.name: str(knob.value) for knob in KNOBS if knob.when == "launch"}


def launch_report(env: Mapping[str, str]) -> dict[str, dict[str, object]]:
    """Before and after of the launch knobs; a variable that the user has set stays as it is.

    Args:
        env: Environment before the knobs.
    """
    return {name: {"before": env.get(name), "after": env.get(name, value)} for name, value in launch_environment().items()}
