"""Facts about the accelerator that a program uses; asked only once the program itself has started CUDA.

Torch's record of the current device, the version functions of the loaded runtime, and NVML for what neither tells. A machine
without NVML (containers without the management library, Jetson) leaves those facts unknown, each with the reason.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any

from opguard_core.determinism.nvml import Card, NvmlRefused
from opguard_core.determinism.streams import Reader, fact

_CARD_FACTS: dict[str, Callable[[Card], object]] = {
    "device.driver": Card.driver,
    "device.firmware": Card.firmware,
    "device.ecc.mode": Card.ecc,
    "device.ecc.errors": Card.errors,
    "device.ecc.remapped_rows": Card.remapped_rows,
    "device.mig": Card.mig,
    "device.compute_mode": Card.compute_mode,
}


def device_facts(torch: Any) -> dict[str, object]:
    """``device.*`` of the current device, and versions of the libraries that it runs; never raises.

    Args:
        torch: The module; CUDA must be initialised.

    Cost: some milliseconds, once a run, on the thread of the first optimizer step; starts nothing on the device.
    """
    properties = fact(lambda: torch.cuda.get_device_properties(torch.cuda.current_device()))
    if isinstance(properties, dict):
        return {"device.name": properties}
    device: Any = properties
    readers: dict[str, Reader] = {
        "device.name": lambda: device.name,
        "device.capability": lambda: f"{device.major}.{device.minor}",
        "device.uuid": lambda: str(device.uuid),
        "device.pci": lambda: _bus(device),
        "device.multiprocessors": lambda: device.multi_processor_count,
        "device.memory_bytes": lambda: device.total_memory,
        "device.memory_bytes_per_s": lambda: _memory_rate(device),
        "device.count": torch.cuda.device_count,
        "torch.cuda_runtime": lambda: _runtime_version(str(torch.version.cuda)),
        "device.driver_api": lambda: version_text(torch._C._cuda_getDriverVersion()),
        "torch.cudnn": torch.backends.cudnn.version,
        "torch.nccl": lambda: ".".join(map(str, torch.cuda.nccl.version())),
    }
    return {
        **{key: fact(read) for key, read in readers.items()},
        **card_facts(str(fact(lambda: device.uuid)), str(fact(lambda: _bus(device)))),
    }


def card_facts(uuid: str, bus: str) -> dict[str, object]:
    """What NVML adds; every value unknown, with the reason, where it cannot be asked.

    Args:
        uuid: Of the card.
        bus: Its PCI bus id.
    """
    try:
        card = Card(uuid, bus)
    except (NvmlRefused, AttributeError, ValueError, ctypes.ArgumentError) as error:
        return {key: {"unknown": str(error)} for key in _CARD_FACTS}
    try:
        return {key: fact(lambda read=read: read(card)) for key, read in _CARD_FACTS.items()}  # type: ignore[misc]
    finally:
        fact(card.close)


def version_text(number: int) -> str:
    """CUDA's way to write a version as a number: 13000 is 13.0."""
    return f"{number // 1000}.{number % 1000 // 10}"


def _memory_rate(device: Any) -> int:
    """What the memory could move at most, by its clock and width; two transfers a clock."""
    return 2 * int(device.memory_clock_rate) * 1000 * int(device.memory_bus_width) // 8


def _bus(device: Any) -> str:
    return f"{device.pci_domain_id:04x}:{device.pci_bus_id:02x}:{device.pci_device_id:02x}.0"


def _runtime_version(built_for: str) -> str:
    """Version of the runtime library that is loaded, which need not be the one that torch was built with."""
    # Only if it is loaded already: a second copy would be another runtime.
    library = ctypes.CDLL(f"libcudart.so.{built_for.partition('.')[0]}", mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    number = ctypes.c_int()
    answer = library.cudaRuntimeGetVersion(ctypes.byref(number))
    if answer != 0:
        raise RuntimeError(f"cudaRuntimeGetVersion: error {answer}")
    return version_text(number.value)
