"""How fast the fingerprint is on one core, beside memcpy: `python -m tests.benchmarks.fingerprint [MiB]`.

Prints the tables of RESULTS.md. Times are processor time of this thread, the least of several repeats, so that a busy machine shows less.
All digests in one pass, always. Rates count the logical bytes, read once; memcpy is charged the bytes that it copies, once.
"""

from __future__ import annotations

import datetime
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from opguard_core.fingerprint import cpu, native, numpy_twin
from opguard_core.fingerprint.dtypes import ELEMENT_TYPES

DTYPES = ["float32", "bfloat16", "float16", "float64", "int64", "int32", "uint8", "float8_e4m3fn", "complex64", "complex128"]


def least_seconds(call: Callable[[], object], repeats: int = 5) -> float:
    best = float("inf")
    for _ in range(repeats):
        start = time.thread_time_ns()
        call()
        best = min(best, time.thread_time_ns() - start)
    return best / 1e9


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def dense_rates(memory: np.ndarray, copy_rate: float) -> None:
    print("| dtype, contiguous | compiled GB/s | of memcpy | numpy GB/s |\n|---|---|---|---|")
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
        print(f"| {dtype} | {compiled / 1e9:.2f} | {compiled / copy_rate:.2f} | {chunked / 1e9:.2f} |")


def strided_rates(memory: np.ndarray) -> None:
    print("\n| layout, 16 M elements or what fits | float32 GB/s | bfloat16 GB/s |\n|---|---|---|")
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
    for name, (shape, strides) in layouts.items():
        cells = []
        for dtype in ("float32", "bfloat16"):
            reader = cpu.Reader(ELEMENT_TYPES[dtype], shape, strides)
            assert reader.extent_bytes <= memory.nbytes
            nbytes = int(np.prod(shape)) * ELEMENT_TYPES[dtype].item_bytes
            cells.append(f"{nbytes / least_seconds(lambda reader=reader: reader.read(memory.ctypes.data)) / 1e9:.2f}")
        print(f"| {name} | {' | '.join(cells)} |")


def small_calls(memory: np.ndarray) -> None:
    print("\n| one call on 32 float32 | us |\n|---|---|")
    pointer, shape, strides = memory.ctypes.data, (4, 8), (8, 1)
    reader = cpu.Reader(ELEMENT_TYPES["float32"], shape, strides)
    calls: dict[str, Callable[[], object]] = {
        "an empty Python function": lambda: None,
        "`Reader.read`": lambda: reader.read(pointer),
        "`cpu.fingerprint`": lambda: cpu.fingerprint(pointer, "float32", shape, strides),
    }
    try:
        import torch

        from opguard_core.probe import tensor
    except ImportError:
        print("| torch is not installed: no probe | - |")
    else:
        plain, parameter = torch.randn(4, 8), torch.nn.Parameter(torch.randn(4, 8))
        conjugate = torch.randn(4, 4, dtype=torch.complex64).conj()
        calls["`probe.tensor.fingerprint`, plain"] = lambda: tensor.fingerprint(plain)
        calls["`probe.tensor.fingerprint`, parameter"] = lambda: tensor.fingerprint(parameter)
        calls["`probe.tensor.fingerprint`, conjugate view"] = lambda: tensor.fingerprint(conjugate)
    for name, call in calls.items():
        call()
        many = 20_000
        seconds = least_seconds(lambda call=call, many=many: [call() for _ in range(many)])
        print(f"| {name} | {seconds / many * 1e6:.2f} |")


def main() -> None:
    mebibytes = int(sys.argv[1]) if len(sys.argv) > 1 else 256
    memory = np.random.default_rng(0).standard_normal(mebibytes << 18, dtype=np.float32)
    target = np.empty_like(memory)
    copy_rate = memory.nbytes / least_seconds(lambda: np.copyto(target, memory))
    loaded = cpu.implementation()
    today = datetime.datetime.now(datetime.timezone.utc)
    built = f"{loaded.compiler} {' '.join(loaded.flags)}" if isinstance(loaded, native.Native) else loaded.reason
    print(f"{today:%Y-%m-%d}, {processor()}, one core, Python {platform.python_version()}, numpy {np.__version__},")
    print(f"{built}; {mebibytes} MiB; memcpy {copy_rate / 1e9:.2f} GB/s.\n")
    dense_rates(memory, copy_rate)
    strided_rates(memory)
    small_calls(memory)


if __name__ == "__main__":
    main()
