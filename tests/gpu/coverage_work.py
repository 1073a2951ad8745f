"""The work whose kernels are counted: each section makes what it needs on a card and gives back one call that launches.

Sizes are small: what is asked is which kernels are seen, not how fast they are. A section that a machine lacks something for says so.
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.gpu.models import Size, training

Work = Callable[[], object]
DEVICE = "cuda"

TRITON = """
import triton
import triton.language as tl

@triton.jit
def scaled(out, x, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) * 1.5, mask=at < n)
"""


def _gpt() -> Work:
    return training("a", Size(2, 256, 128, 2, 1024), torch.device(DEVICE), torch.bfloat16)[1]


def _attention(backend: str) -> Callable[[], Work]:
    def make() -> Work:
        from torch.nn.attention import SDPBackend, sdpa_kernel

        q, k, v = (torch.randn(2, 4, 256, 64, device=DEVICE, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))

        def work() -> None:
            with sdpa_kernel(getattr(SDPBackend, backend)):
                F.scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward()

        return work

    return make


def _convolution() -> Work:
    model = nn.Sequential(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 32, 5)).to(DEVICE)
    images = torch.randn(8, 16, 32, 32, device=DEVICE)
    return lambda: model(images).square().mean().backward()


def _adamw(**options: bool) -> Callable[[], Work]:
    def make() -> Work:
        model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(6)]).to(DEVICE)
        optimizer = torch.optim.AdamW(model.parameters(), **options)
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        return optimizer.step

    return make


def _triton() -> Work:
    folder = Path(tempfile.mkdtemp(prefix="opguard-coverage-"))
    (folder / "opguard_scaled.py").write_text(TRITON)  # Triton reads the source of a kernel from its file
    spec = importlib.util.spec_from_file_location("opguard_scaled", folder / "opguard_scaled.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    x, out = torch.randn(1 << 16, device=DEVICE), torch.empty(1 << 16, device=DEVICE)

    def work() -> None:
        for _ in range(5):
            module.scaled[(64,)](out, x, x.numel(), BLOCK=1024)
        out.add_(1)

    return work


def _cupy(what: str) -> Callable[[], Work]:
    def make() -> Work:
        import cupy

        x = cupy.random.default_rng(0).standard_normal((256, 256), dtype=cupy.float32)
        kernel = cupy.RawKernel('extern "C" __global__ void doubled(float *x) { x[threadIdx.x] *= 2; }', "doubled")
        positive = x @ x.T + 256 * cupy.eye(256, dtype=cupy.float32)

        def elementwise() -> None:
            (cupy.sin(x) + x).sum(axis=0)
            kernel((1,), (256,), (x,))

        def sorted_() -> None:
            torch.sort(torch.arange(1 << 20, device=DEVICE).flip(0))
            cupy.sort(x.ravel())

        def solved() -> None:
            torch.linalg.cholesky(torch.as_tensor(positive, device=DEVICE))
            cupy.linalg.solve(positive, x)
            torch.linalg.svdvals(torch.as_tensor(positive, device=DEVICE))

        def sparse() -> None:
            torch.sparse.mm(rows, torch.as_tensor(x, device=DEVICE))

        rows = torch.eye(256, device=DEVICE).to_sparse_csr()
        return {"elementwise": elementwise, "sort": sorted_, "solve": solved, "sparse": sparse}[what]

    return make


def _fft() -> Work:
    x = torch.randn(64, 4096, device=DEVICE, requires_grad=True)
    return lambda: torch.fft.irfft(torch.fft.rfft(x) * 2).square().sum().backward()


def _embedding() -> Work:
    words = nn.Embedding(1000, 64, device=DEVICE)
    ids = torch.randint(0, 1000, (4096,), device=DEVICE)
    return lambda: words(ids).square().sum().backward()


def _compiled() -> Work:
    block = nn.Sequential(nn.LayerNorm(128), nn.Linear(128, 256), nn.GELU(), nn.Linear(256, 128)).to(DEVICE)
    run, x = torch.compile(block), torch.randn(64, 128, device=DEVICE)

    def work() -> None:
        run(x).square().mean().backward()

    return work


def _graph() -> Work:
    """A graph that is captured by the first call, so that whoever watches by then knows its kernels."""
    x, weight = torch.randn(256, 256, device=DEVICE), torch.randn(256, 256, device=DEVICE)
    made: list[torch.cuda.CUDAGraph] = []

    def capture() -> None:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                (x @ weight).relu().sum()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            (x @ weight).relu().sum()
        made.append(graph)

    def work() -> None:
        if not made:
            capture()
        for _ in range(5):
            made[0].replay()

    return work


SECTIONS: dict[str, Callable[[], Work]] = {
    "gpt-eager": _gpt,
    "sdpa-flash": _attention("FLASH_ATTENTION"),
    "sdpa-efficient": _attention("EFFICIENT_ATTENTION"),
    "sdpa-math": _attention("MATH"),
    "sdpa-cudnn": _attention("CUDNN_ATTENTION"),
    "convolution": _convolution,
    "adamw-foreach": _adamw(foreach=True),
    "adamw-fused": _adamw(fused=True),
    "triton": _triton,
    "cupy": _cupy("elementwise"),
    "cub-sort": _cupy("sort"),
    "cufft": _fft,
    "cusolver": _cupy("solve"),
    "cusparse": _cupy("sparse"),
    "embedding-backward": _embedding,
    "compiled": _compiled,
    "graph-replay": _graph,
}
FROM_THE_FIRST = ("graph-replay",)
"""Sections whose first call has to be seen: it captures the graph that the others replay."""
OUTSIDE = ("compiled",)
"""Sections that are counted a second time without a capture, in which code that was compiled before runs as its own."""


def fake(folder: Path) -> tuple[Work, Callable[[], int]]:
    """For a machine without a card: an operator that launches at the fake driver, one launch apart; and how many that driver saw."""
    import ctypes

    driver: Any = ctypes.CDLL(str(folder / "libcuda.so.1"))
    driver.fake_driver_calls.restype = ctypes.c_uint64

    def launch(handle: int) -> None:
        value, number = ctypes.c_uint64(1 << 40), ctypes.c_int(3)
        arguments = (ctypes.c_void_p * 2)(ctypes.addressof(value), ctypes.addressof(number))
        driver.cuLaunchKernel(ctypes.c_void_p(handle), 1, 1, 1, 1, 1, 1, 0, None, arguments, None)

    @torch.library.custom_op("opguard_coverage::launches", mutates_args=())
    def launches(x: torch.Tensor) -> torch.Tensor:
        for at in range(6):
            launch(5 + at % 2)
        return x + 1

    def work() -> None:
        launches(torch.ones(3))
        launch(9)

    return work, lambda: int(driver.fake_driver_calls(0))
