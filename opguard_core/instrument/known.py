"""Packages whose functions are either seen by torch's dispatcher or no work on tensors of their own."""

from __future__ import annotations

import sys
from functools import lru_cache

TORCH = frozenset({"torch", "torchgen", "functorch", "triton"})  # parts of it are compiled from their source, too
# Numbers, files, pictures, tests and tools: they have native functions, and none of them is an extension under suspicion.
COMMON = frozenset(
    {"numpy", "scipy", "pandas", "pyarrow", "sympy", "mpmath", "networkx", "sklearn", "numba", "llvmlite", "cupy", "cupy_backends", "jax"}
    | {
        "matplotlib",
        "PIL",
        "cv2",
        "yaml",
        "jinja2",
        "markupsafe",
        "regex",
        "_regex",
        "orjson",
        "msgpack",
        "psutil",
        "pynvml",
        "lxml",
        "google",
    }
    | {"pytest", "_pytest", "pluggy", "hypothesis", "coverage", "debugpy", "pydevd", "_pydevd_bundle", "IPython", "ipykernel", "libcst"}
    | {"setuptools", "pkg_resources", "_distutils_hack", "pip", "tqdm", "requests", "urllib3", "aiohttp", "cffi", "cython", "pybind11"}
    | {"tokenizers", "safetensors", "sentencepiece", "tiktoken", "wandb", "tensorboard", "mcp", "pydantic", "pydantic_core"}
)
OWN = frozenset({"opguard_core", "opguard_harness"})


@lru_cache(maxsize=4096)
def known_package(module: str) -> str:
    """What a module belongs to: "torch", "the standard library", the name of a common package; "" if it is none of these.

    Args:
        module: Dotted name.
    """
    package = module.partition(".")[0]
    if package in TORCH:
        return "torch"
    if package in sys.stdlib_module_names or package.startswith("_sysconfigdata_"):
        return "the standard library"
    return package if package in COMMON or package in OWN else ""
