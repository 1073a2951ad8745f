"""Compiling the fingerprint kernels: NVRTC through CuPy, one variant at a time, kept in our own cache. Imports no torch.

    python -m opguard_core.probe.kernel_build      compiles for the cards of this machine; what a launcher runs before the ranks start

CuPy's own disk cache is not used: it lies in the user's folder, and a setting of it would be theirs too.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from importlib import import_module, metadata

from opguard_core import builds
from opguard_core.probe import launch_recipe

VARIANTS = tuple(f"og_{digests}{statistics}" for digests in ("all", "bag", "mix") for statistics in ("", "s"))
KERNELS = tuple(f"{variant}_{size}" for variant in VARIANTS for size in ("few", "many"))
NO_VALUE64, NO_ELEMENTS, STATISTICS, REGIONS_SHIFT = 1, 2, 4, 8  # flags of a submit (probe_api.h)
SOURCE = "fingerprint.cu"
_INSTANCE = "FINGERPRINT("  # how the source's lines begin that make one variant
_OPTIONS = ("--std=c++17",)
_MOST_SECONDS = 300.0
_COMPILERS = ("cupy-cuda13x", "cupy-cuda12x", "cupy", "nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12")
_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_...


def variant_of(flags: int) -> str:
    """Which variant of the kernels a submit with these flags launches."""
    digests = "mix" if flags & NO_ELEMENTS else "bag" if flags & NO_VALUE64 else "all"
    return f"og_{digests}{'s' if flags & STATISTICS else ''}"


def cubin(arch: str, variant: str) -> bytes | builds.NotBuilt:
    """One variant, from the cache or compiled now.

    Args:
        arch: Real architecture, "sm_90".
        variant: Of ``VARIANTS``.

    Cost: NVRTC, up to a minute of one core, once per machine, variant and kind of card; then a millisecond.
    """
    names, texts = _headers()
    facts = [_source(variant).encode(), *(text.encode() for text in texts), " ".join((arch, compiler(), *_OPTIONS, *names)).encode()]
    return builds.keep(variant, facts, lambda: compile_for(arch, variant), suffix=".cubin", seconds=_MOST_SECONDS)


def compiler() -> str:
    """CuPy and NVRTC, as installed; importing neither."""
    found = []
    for name in _COMPILERS:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    return ", ".join(found)


def compile_for(arch: str, variant: str) -> bytes:
    """One variant as a cubin, always compiled.

    Raises:
        RuntimeError: CuPy cannot be used, or NVRTC refused the source, with the head of its log.
    """
    try:
        nvrtc = import_module("cupy").cuda.nvrtc
    except (ImportError, OSError) as error:
        raise RuntimeError(f"CuPy cannot be used: {error}") from error
    sys.stderr.write(f"opguard: compiling the GPU kernels {variant} for {arch}, once per machine\n")
    names, texts = _headers()
    program = nvrtc.createProgram(_source(variant), SOURCE, [text.encode() for text in texts], [name.encode() for name in names])
    try:
        nvrtc.compileProgram(program, (f"--gpu-architecture={arch}", *_OPTIONS))
        return bytes(nvrtc.getCUBIN(program))
    except nvrtc.NVRTCError as error:
        raise RuntimeError(f"NVRTC: {error}: {str(nvrtc.getProgramLog(program)).strip()[:600]}") from error
    finally:
        nvrtc.destroyProgram(program)


def prepare() -> None:
    """Have a child process compile what this machine's cards need, if it shows a driver; no CUDA in the launcher's own process.

    Cost: about half a second where all is compiled; nothing where there is no card. What fails here fails again, with its reason, in
    the ranks.
    """
    if not launch_recipe.has_driver():
        return
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    try:
        subprocess.run(
            [sys.executable, "-m", "opguard_core.probe.kernel_build"], env=environment, stdin=subprocess.DEVNULL, timeout=2 * _MOST_SECONDS
        )
    except (OSError, subprocess.SubprocessError) as error:
        sys.stderr.write(f"opguard: the GPU kernels are left to the ranks: {error}\n")


def architectures() -> list[str]:
    """Of this machine's cards, each once. Starts the driver, makes no context."""
    try:
        driver = ctypes.CDLL(launch_recipe.driver_path())
    except OSError:
        return []
    count, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return []
    found = []
    for device in range(count.value):
        driver.cuDeviceGetAttribute(ctypes.byref(major), _MAJOR, device)
        driver.cuDeviceGetAttribute(ctypes.byref(minor), _MINOR, device)
        found.append(f"sm_{major.value}{minor.value}")
    return sorted(set(found))


def _source(variant: str) -> str:
    """The source with one variant: the compiler needs its time for each, and a run uses one."""
    lines = (builds.cuda_folder() / SOURCE).read_text(encoding="utf-8").splitlines()
    return "\n".join(line for line in lines if not line.startswith(_INSTANCE) or line.startswith(f"{_INSTANCE}{variant},"))


def _headers() -> tuple[tuple[str, ...], tuple[str, ...]]:
    paths = sorted(path for path in builds.cuda_folder().iterdir() if path.suffix == ".cuh" or path.name == "probe_api.h")
    return tuple(path.name for path in paths), tuple(path.read_text(encoding="utf-8") for path in paths)


def main() -> int:
    """Compile the usual variant for every card."""
    for arch in architectures() if compiler() else []:
        made = cubin(arch, variant_of(0))
        if isinstance(made, builds.NotBuilt):
            sys.stderr.write(f"opguard: the GPU kernels were not compiled: {made.reason}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
