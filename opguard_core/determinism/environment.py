"""Environment variables whose names may be stored, because they can change what a training computes.

Everything else in an environment stays out of traces: it may hold secrets.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping

from opguard_core.plan.command import GIVEN_VARIABLE
from opguard_core.plan.redact import MASK, is_secret_name

_NAMES = re.compile(
    r"""
    (OMP|MKL|KMP|GOMP|OPENBLAS|BLIS|VECLIB|NUMEXPR|DNNL|ONEDNN)_\w+      # threads and kernels on the CPU
    | (TORCH|TORCHINDUCTOR|TORCHDYNAMO|PYTORCH|ATEN|TRITON)_\w+
    | (CUDA|CUDNN|CUBLAS|CUBLASLT|NVIDIA|NVTE|NCCL|GLOO|UCC|HIP|ROCM|HSA|MIOPEN|RCCL)_\w+
    | PYTHONHASHSEED | PYTHONOPTIMIZE | PYTHONDEVMODE
    | ACCELERATE_\w+ | FSDP_\w+
    | DISABLE_ADDMM_CUDA_LT
    | (WORLD_SIZE | LOCAL_WORLD_SIZE)
    """,
    re.VERBOSE,
)
# Addresses, folders and devices that differ between any two runs and change no value.
_LEFT_OUT = re.compile(
    r"(TORCHELASTIC_\w+|TORCH_NCCL_TRACE\w*|TORCHINDUCTOR_CACHE_DIR|TRITON_CACHE_DIR|TORCH_HOME|TORCH_EXTENSIONS_DIR|NCCL_SOCKET_IFNAME|GLOO_SOCKET_IFNAME)"
)


def relevant(env: Mapping[str, str]) -> dict[str, str]:
    """The part of an environment that a contract keeps; values of secret-sounding names are masked."""
    kept = {name: value for name, value in env.items() if _NAMES.fullmatch(name) and not _LEFT_OUT.fullmatch(name)}
    return {name: MASK if is_secret_name(name) else value for name, value in sorted(kept.items())}


def given(env: Mapping[str, str]) -> dict[str, str]:
    """Digests of variables that were set for one side by name, without those of `relevant`: the program decides what they mean.

    A value itself may be anything; that of a secret-sounding name leaves no trace at all.
    """
    try:
        names = json.loads(env.get(GIVEN_VARIABLE, "[]"))
    except ValueError:
        names = []
    known = relevant(env)
    found = [name for name in names if isinstance(name, str) and name in env and name not in known] if isinstance(names, list) else []
    return {name: MASK if is_secret_name(name) else f"sha256:{_digest(env[name])}" for name in found}


def _digest(value: str) -> str:
    return hashlib.sha256(value.encode("utf-8", "surrogateescape")).hexdigest()[:16]
