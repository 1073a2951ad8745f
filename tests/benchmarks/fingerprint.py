"""How fast the fingerprint is on one core, beside memcpy: `python -m tests.benchmarks --only fingerprint`.

Times are processor time of this thread, the least of several repeats, so that a busy machine shows less. All digests in one
pass, always. Rates count the logical bytes, read once; memcpy is charged the bytes that it copies, once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from opguard_core.fingerprint import cpu, native, numpy_twin
from opguard_core.fingerprint.dtypes import ELEMENT_TYPES
from opguard_core.probe import tensor
from tests.benchmarks.report import Criterion, Section, table

RATES = (3.0, 0.4)  # GB/s on contiguous float32: compiled, numpy
DTYPES = ["float32", "bfloat16", "float16", "float64", "int64", "int32", "uint8", "float8_e4m3fn", "complex64", "complex128"]


def least_seconds(call: Callable[[], object], repeats: int = 5) -> float:
    best = float("inf")
    for _ in range(repeats):
        start = time.thread_time_ns()
        call()
        best = min(best, time.thread_time_ns() - start)
    return best / 1e9


def dense_rates(memory: np.ndarray, copy_rate: float) -> list[tuple[str, float, float, float]]:
    """Dtype, compiled GB/s, share of memcpy, numpy GB/s, on contiguous memory."""
    rows = []
    for dtype in DTYPES:
        element = ELEMENT_TYPES[dtype]
        length = memory.nbytes // element.item_bytes
        compiled = memory.nbytes / least_seconds(
            lambda dtype=dtype, length=length: cpu.fingerprint(memory.ctypes.data, dtype, (length,), (1,))
        )
        short = min(memory.nbytes, 8 << 20)
        chunked = short / least_seconds(
            lambda element=element, short=short: numpy_twin.fingerprint(memory.ctypes.data, element, (short // element.item_bytes,), (1,)),
            3,
        )
        rows.append((dtype, compiled / 1e9, compiled / copy_rate, chunked / 1e9))
    return rows


def strided_rates(memory: np.ndarray) -> list[tuple[str, float | None, float | None]]:
    """Layout, GB/s of float32 and of bfloat16; None where the memory is too small for it."""
    layouts = {
        "contiguous": ((4096, 4096), (4096, 1)),
        "transposed 4096 x 4096": ((4096, 4096), (1, 4096)),
        "transposed, odd 1001 x 4099": ((1001, 4099), (1, 1001)),
        "transposed, tall 65536 x 128": ((65536, 128), (1, 65536)),
        "heads [8,16,1024,64] of [8,1024,16,64]": ((8, 16, 1024, 64), (1 << 20, 64, 1024, 1)),
        "keys transposed [8,16,64,1024]": ((8, 16, 64, 1024), (1 << 20, 64, 1, 1024)),
        "columns 0:1001 of 2048": ((4096, 1001), (2048, 1)),
        "every second element": ((1 << 22,), (2,)),
        "one row expanded 4096 times": ((4096, 4096), (0, 1)),
    }
    rows = []
    for name, (shape, strides) in layouts.items():
        rates: list[float | None] = []
        for dtype in ("float32", "bfloat16"):
            reader = cpu.Reader(ELEMENT_TYPES[dtype], shape, strides)
            if reader.extent_bytes > memory.nbytes:
                rates.append(None)
                continue
            nbytes = int(np.prod(shape)) * ELEMENT_TYPES[dtype].item_bytes
            rates.append(nbytes / least_seconds(lambda reader=reader: reader.read(memory.ctypes.data)) / 1e9)
        rows.append((name, rates[0], rates[1]))
    return rows


def small_calls(memory: np.ndarray, many: int) -> list[tuple[str, float]]:
    """Call, microseconds of one on 32 float32."""
    pointer, shape, strides = memory.ctypes.data, (4, 8), (8, 1)
    reader = cpu.Reader(ELEMENT_TYPES["float32"], shape, strides)
    plain, parameter = torch.randn(4, 8), torch.nn.Parameter(torch.randn(4, 8))
    conjugate = torch.randn(4, 4, dtype=torch.complex64).conj()
    calls: dict[str, Callable[[], object]] = {
        "an empty Python function": lambda: None,
        "`Reader.read`": lambda: reader.read(pointer),
        "`cpu.fingerprint`": lambda: cpu.fingerprint(pointer, "float32", shape, strides),
        "`probe.tensor.fingerprint`, plain": lambda: tensor.fingerprint(plain),
        "`probe.tensor.fingerprint`, parameter": lambda: tensor.fingerprint(parameter),
        "`probe.tensor.fingerprint`, conjugate view": lambda: tensor.fingerprint(conjugate),
    }
    rows = []
    for name, call in calls.items():
        call()
        rows.append((name, least_seconds(lambda call=call: [call() for _ in range(many)]) / many * 1e6))
    return rows


def measure(folder: Path, *, progress: Callable[[str], None], mebibytes: int = 256, many: int = 20_000) -> Section:
    """Rates on large memory, and what one small call costs.

    Args:
        folder: Not used; nothing is written.
        progress: Told what is being done.
        mebibytes: Size of the memory.
        many: Small calls to average over.
    """
    del folder
    progress(f"fingerprint, {mebibytes} MiB")
    memory = np.random.default_rng(0).standard_normal(mebibytes << 18, dtype=np.float32)
    target = np.empty_like(memory)
    copy_rate = memory.nbytes / least_seconds(lambda: np.copyto(target, memory))
    dense = dense_rates(memory, copy_rate)
    loaded = cpu.implementation()
    built = f"{loaded.compiler} {' '.join(loaded.flags)}" if isinstance(loaded, native.Native) else loaded.reason
    progress("fingerprint, strided and small")
    return Section(
        how=f"One core, all digests in one pass, numpy {np.__version__}, {built}; {mebibytes} MiB; memcpy {copy_rate / 1e9:.2f} GB/s.",
        tables=[
            table(("dtype, contiguous", "compiled GB/s", "of memcpy", "numpy GB/s"), dense),
            table(("layout, 16 M elements or what fits", "float32 GB/s", "bfloat16 GB/s"), strided_rates(memory)),
            table(("one call on 32 float32", "us"), small_calls(memory, many)),
        ],
        criteria=[
            Criterion("contiguous float32, compiled", dense[0][1], RATES[0], "GB/s", at_least=True),
            Criterion("contiguous float32, numpy", dense[0][3], RATES[1], "GB/s", at_least=True),
        ],
    )
