"""What to read of torch, by contract key; each reader may fail on some torch without harm to the others.

None of them starts a device, moves a stream or changes a setting.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from opguard_core.determinism.environment import relevant
from opguard_core.determinism.streams import Reader, digest, fact

# Device types that have an autocast of their own; asking for one that this torch lacks raises and is left out.
AUTOCAST_DEVICES = ("cpu", "cuda", "xpu", "mps", "hpu", "privateuseone")
# Settings of the compiler that change what it computes, not how fast. Source: torch/_inductor/config.py.
_INDUCTOR = (
    "coordinate_descent_tuning",
    "emulate_precision_casts",
    "emulate_divison_rounding",
    "fallback_random",
    "force_same_precision",
    "max_autotune",
    "max_autotune_gemm",
    "split_reductions",
)


def autocast_policies(torch: Any) -> list[str]:
    """Autocast regions open on the calling thread, as "cpu bfloat16"; empty for none. Cost: 0.1 us while there is none."""
    if not torch._C._is_any_autocast_enabled():
        return []
    found = []
    for device in AUTOCAST_DEVICES:
        try:
            if torch.is_autocast_enabled(device):
                found.append(f"{device} {str(torch.get_autocast_dtype(device)).removeprefix('torch.')}")
        except (RuntimeError, TypeError):
            continue  # this torch knows no autocast for it
    return found


def forward_readers(torch: Any) -> Mapping[str, Reader]:
    """What to read when the first training forward begins, inside the regions that the program put around it."""
    cuda = torch.backends.cuda
    return {
        "forward.autocast": lambda: autocast_policies(torch),
        "forward.autocast_cache": torch.is_autocast_cache_enabled,
        "forward.default_dtype": lambda: str(torch.get_default_dtype()),
        "forward.deterministic_algorithms": torch.are_deterministic_algorithms_enabled,
        "forward.float32_matmul_precision": torch.get_float32_matmul_precision,
        "forward.sdpa": lambda: {
            "flash": cuda.flash_sdp_enabled(),
            "math": cuda.math_sdp_enabled(),
            "mem_efficient": cuda.mem_efficient_sdp_enabled(),
            "cudnn": cuda.cudnn_sdp_enabled(),
            "priority": list(torch._C._get_sdp_priority_order()),
        },
    }


def late_readers(torch: Any) -> Mapping[str, Reader]:
    """What to read late, by contract key; each may fail on some torch without harm to the others."""
    cuda, cudnn, mkldnn = torch.backends.cuda, torch.backends.cudnn, torch.backends.mkldnn
    readers: dict[str, Reader] = {
        "torch.build": lambda: digest(torch.__config__.show().encode()),
        "cpu.capability": torch.backends.cpu.get_cpu_capability,
        "threads.intraop": torch.get_num_threads,
        "threads.interop": torch.get_num_interop_threads,
        "flags.default_dtype": lambda: str(torch.get_default_dtype()),
        "flags.default_device": lambda: str(torch.get_default_device()),
        "flags.deterministic_algorithms": torch.are_deterministic_algorithms_enabled,
        "flags.deterministic_warn_only": torch.is_deterministic_algorithms_warn_only_enabled,
        "flags.fill_uninitialized_memory": lambda: torch.utils.deterministic.fill_uninitialized_memory,
        "flags.float32_matmul_precision": torch.get_float32_matmul_precision,
        "flags.mkldnn.enabled": lambda: mkldnn.enabled,
        "flags.mkldnn.deterministic": lambda: mkldnn.deterministic,
        "flags.cudnn.enabled": lambda: cudnn.enabled,
        "flags.cudnn.benchmark": lambda: cudnn.benchmark,
        "flags.cudnn.deterministic": lambda: cudnn.deterministic,
        "flags.cudnn.allow_tf32": lambda: cudnn.allow_tf32,
        "flags.cuda.matmul.allow_tf32": lambda: cuda.matmul.allow_tf32,
        "flags.cuda.matmul.reduced_bf16": lambda: str(cuda.matmul.allow_bf16_reduced_precision_reduction),
        "flags.cuda.matmul.reduced_bf16_split_k": lambda: cuda.matmul.allow_bf16_reduced_precision_reduction_split_k,
        "flags.cuda.matmul.reduced_fp16": lambda: str(cuda.matmul.allow_fp16_reduced_precision_reduction),
        "flags.cuda.matmul.reduced_fp16_split_k": lambda: cuda.matmul.allow_fp16_reduced_precision_reduction_split_k,
        "flags.cuda.matmul.fp16_accumulation": lambda: cuda.matmul.allow_fp16_accumulation,
        "flags.cuda.blas": lambda: str(cuda.preferred_blas_library()),
        "flags.cuda.linalg": lambda: str(cuda.preferred_linalg_library()),
        "flags.cuda.sm_carveout": lambda: torch._C._get_sm_carveout_experimental(),
        "flags.fp32_precision.all": lambda: torch.backends.fp32_precision,
        "flags.fp32_precision.cuda.matmul": lambda: cuda.matmul.fp32_precision,
        "flags.fp32_precision.cudnn.all": lambda: cudnn.fp32_precision,
        "flags.fp32_precision.cudnn.conv": lambda: cudnn.conv.fp32_precision,
        "flags.fp32_precision.cudnn.rnn": lambda: cudnn.rnn.fp32_precision,
        "flags.fp32_precision.mkldnn.matmul": lambda: mkldnn.matmul.fp32_precision,
        "flags.fp32_precision.mkldnn.conv": lambda: mkldnn.conv.fp32_precision,
        "flags.fp32_precision.mkldnn.rnn": lambda: mkldnn.rnn.fp32_precision,
        "flags.nnpack": lambda: torch._C._get_nnpack_enabled(),
        "flags.sdpa.priority": lambda: list(torch._C._get_sdp_priority_order()),
        "flags.sdpa.flash": cuda.flash_sdp_enabled,
        "flags.sdpa.mem_efficient": cuda.mem_efficient_sdp_enabled,
        "flags.sdpa.math": cuda.math_sdp_enabled,
        "flags.sdpa.cudnn": lambda: cuda.cudnn_sdp_enabled(),
        "flags.sdpa.fa3": lambda: torch._C._get_fa3_sdp_enabled(),
        "flags.sdpa.reduced_math": lambda: cuda.fp16_bf16_reduction_math_sdp_allowed(),
        "flags.mha_fastpath": lambda: torch.backends.mha.get_fastpath_enabled(),
        "flags.autocast.cpu": lambda: torch.is_autocast_enabled("cpu"),
        "flags.autocast.cpu_dtype": lambda: str(torch.get_autocast_dtype("cpu")),
        "flags.autocast.cuda": lambda: torch.is_autocast_enabled("cuda"),
        "flags.autocast.cuda_dtype": lambda: str(torch.get_autocast_dtype("cuda")),
        "seed.torch": torch.initial_seed,
        "compile.used": _frames_compiled,
        "compile.inductor": _inductor,
        "dist.backend": lambda: _distributed(torch, "get_backend"),
        "dist.world_size": lambda: _distributed(torch, "get_world_size"),
        "env.at_step": lambda: relevant(os.environ),
    }
    if hasattr(torch._C, "_cuda_getCublasWorkspaceSize"):  # built for CUDA, and new enough
        readers["flags.cuda.workspace"] = lambda: {"cublas": cuda.cublas_workspace_size(), "cublaslt": cuda.cublaslt_workspace_size()}
    return readers


def _frames_compiled() -> bool:
    """Whether torch.compile has worked on any function so far."""
    module: Any = sys.modules.get("torch._dynamo.utils")
    return module is not None and bool(module.counters["frames"] or module.counters["stats"]["unique_graphs"])


def _inductor() -> dict[str, object] | None:
    """Settings of the compiler that change what it computes, if the program has loaded it."""
    module: Any = sys.modules.get("torch._inductor.config")
    if module is None:
        return None
    return {name: fact(lambda name=name: getattr(module, name)) for name in _INDUCTOR if hasattr(module, name)}  # type: ignore[misc]


def _distributed(torch: Any, question: str) -> object:
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return None
    return getattr(torch.distributed, question)()
