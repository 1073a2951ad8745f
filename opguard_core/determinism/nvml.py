"""What the NVIDIA driver's management library says of one card: driver, bus, memory errors, partitions, who may use it.

Read through ctypes from a library that comes with the driver, so nothing has to be installed. It talks to the driver by itself:
no CUDA context is made or touched, and no setting is changed. Whatever it cannot tell is a fact with a reason, never an error.

What it cannot see: cards of other vendors, and the part of a card (MIG) that a process was given; facts are those of the whole card.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any

LIBRARY = "libnvidia-ml.so.1"
LIBRARY_VARIABLE = "OPGUARD_LIBNVML"
"""Another library to ask, for tests and for drivers outside of the loader's path."""

_OK = 0
# Source: NVML API reference, nvmlReturn_t.
_REFUSALS = {
    1: "not initialised",
    2: "invalid argument",
    3: "not supported by this card",
    4: "no permission",
    6: "not found",
    9: "no driver",
}
_TEXT_BYTES = 96  # the longest text that NVML gives; a UUID of a part
_COMPUTE_MODES = ("default", "exclusive thread", "prohibited", "exclusive process")
_CORRECTED, _UNCORRECTED = 0, 1
_SINCE_LOADED, _EVER = 0, 1


class NvmlRefused(RuntimeError):
    """NVML could not be asked, or gave no answer; the text says why."""


class Card:
    """One card as NVML knows it.

    Args:
        uuid: Of the card, with or without the leading "GPU-".
        bus: PCI bus id ("0000:17:00.0"), asked for where the UUID is not known to NVML (a part of a card has its own).

    Raises:
        NvmlRefused: There is no library, it does not start, or knows no such card.

    Cost: loads the library and initialises it, some milliseconds; `close` undoes that.
    """

    def __init__(self, uuid: str, bus: str) -> None:
        path = os.environ.get(LIBRARY_VARIABLE) or LIBRARY
        try:
            self._library = ctypes.CDLL(path)
        except OSError as error:
            raise NvmlRefused(f"{path} cannot be loaded: {error}") from error
        self._ask("nvmlInit_v2")
        try:
            self._device = self._handle(uuid, bus)
        except NvmlRefused:
            self.close()
            raise

    def close(self) -> None:
        """Let go of the library; the program's own use of it is counted apart."""
        self._ask("nvmlShutdown")

    def _handle(self, uuid: str, bus: str) -> ctypes.c_void_p:
        device = ctypes.c_void_p()
        name = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
        try:
            self._ask("nvmlDeviceGetHandleByUUID", name.encode(), ctypes.byref(device))
        except NvmlRefused:
            self._ask("nvmlDeviceGetHandleByPciBusId_v2", bus.encode(), ctypes.byref(device))
        return device

    def driver(self) -> str:
        """Version of the driver: "580.159.04"."""
        return self._text("nvmlSystemGetDriverVersion")

    def firmware(self) -> str:
        """Version of the card's own firmware (VBIOS)."""
        return self._text("nvmlDeviceGetVbiosVersion", self._device)

    def ecc(self) -> str:
        """Whether memory errors are corrected: "on" or "off", and what a restart would change it to where that differs."""
        return self._switch("nvmlDeviceGetEccMode")

    def mig(self) -> str:
        """Whether the card is divided into parts: "on" or "off", and what a restart would change it to where that differs."""
        return self._switch("nvmlDeviceGetMigMode")

    def compute_mode(self) -> str:
        """Who may use the card."""
        mode = ctypes.c_int()
        self._ask("nvmlDeviceGetComputeMode", self._device, ctypes.byref(mode))
        return _COMPUTE_MODES[mode.value] if 0 <= mode.value < len(_COMPUTE_MODES) else f"mode {mode.value}"

    def errors(self) -> dict[str, int]:
        """Memory errors: corrected and uncorrected, since the driver was loaded and over the card's life."""
        kinds = (("corrected", _CORRECTED), ("uncorrected", _UNCORRECTED))
        spans = (("since_loaded", _SINCE_LOADED), ("ever", _EVER))
        return {f"{kind}_{span}": self._count(error, counter) for kind, error in kinds for span, counter in spans}

    def remapped_rows(self) -> dict[str, int]:
        """Rows of memory replaced after errors, those that wait for a restart, and whether one could not be replaced."""
        numbers = [ctypes.c_uint() for _ in range(4)]
        self._ask("nvmlDeviceGetRemappedRows", self._device, *map(ctypes.byref, numbers))
        return dict(zip(("corrected", "uncorrected", "pending", "failed"), (number.value for number in numbers), strict=True))

    def _count(self, error: int, counter: int) -> int:
        count = ctypes.c_ulonglong()
        self._ask("nvmlDeviceGetTotalEccErrors", self._device, error, counter, ctypes.byref(count))
        return count.value

    def _switch(self, function: str) -> str:
        now, later = ctypes.c_uint(), ctypes.c_uint()
        self._ask(function, self._device, ctypes.byref(now), ctypes.byref(later))
        words = ["on" if state.value else "off" for state in (now, later)]
        return words[0] if words[0] == words[1] else f"{words[0]}, {words[1]} after a restart"

    def _text(self, function: str, *args: Any) -> str:
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        self._ask(function, *args, text, ctypes.c_uint(_TEXT_BYTES))
        return text.value.decode("ascii", errors="replace")

    def _ask(self, function: str, *args: Any) -> None:
        call: Callable[..., int] | None = getattr(self._library, function, None)
        if call is None:
            raise NvmlRefused(f"this driver's NVML has no {function}")
        answer = call(*args)
        if answer != _OK:
            raise NvmlRefused(f"{function}: {_REFUSALS.get(answer, f'error {answer}')}")
