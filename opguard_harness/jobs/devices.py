"""Which GPUs a program may use, told by its environment and the driver's own tool; torch is not asked.

What it cannot see: GPUs of other vendors, and a program that picks fewer devices than it may use.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_ASK = ("nvidia-smi", "--query-gpu=index,uuid,name", "--format=csv,noheader")
_ASK_S = 30.0
_NONE = ("", "-1", "NoDevFiles")


@dataclass(frozen=True)
class Gpu:
    """One GPU of this machine."""

    index: str
    uuid: str
    name: str


def gpus_of(env: Mapping[str, str]) -> tuple[str, ...]:
    """Names of the GPUs that a program with this environment may use: UUIDs, where the driver tells them."""
    given = env.get("CUDA_VISIBLE_DEVICES")
    if given is not None and given.strip() in _NONE:
        return ()
    present = present_gpus()
    if given is None or not present:
        return tuple(gpu.uuid for gpu in present)
    words = [word.strip() for word in given.split(",")]
    words = words[: words.index("-1")] if "-1" in words else words  # the runtime stops there too
    ordered = env.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or len({gpu.name for gpu in present}) == 1
    if not ordered and any(word.isdecimal() for word in words):
        return tuple(gpu.uuid for gpu in present)  # numbers count the fastest first, and nobody here knows which that is
    found = [_named(word, present) for word in words]
    return tuple(dict.fromkeys(name for name in found if name))


def _named(word: str, present: tuple[Gpu, ...]) -> str:
    """The UUID that a number or the beginning of a UUID means; a part of a GPU (MIG) is a device of its own."""
    if word.startswith("MIG-"):
        return word
    return next((gpu.uuid for gpu in present if word and (gpu.index == word or gpu.uuid.startswith(word))), "")


@cache
def present_gpus() -> tuple[Gpu, ...]:
    """All GPUs of this machine; asked once in a process."""
    try:
        asked = subprocess.run(_ASK, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=_ASK_S, check=False)
        listing = asked.stdout if asked.returncode == 0 else ""
    except (OSError, subprocess.TimeoutExpired):
        listing = ""
    found = parsed(listing)
    nodes = sorted(path.name for path in Path("/dev").glob("nvidia[0-9]*"))
    return found or tuple(Gpu(name.removeprefix("nvidia"), f"/dev/{name}", "") for name in nodes)


def parsed(listing: str) -> tuple[Gpu, ...]:
    """GPUs as ``nvidia-smi`` lists them; lines of anything else are passed over."""
    rows = [[word.strip() for word in line.split(",", 2)] for line in listing.splitlines()]
    return tuple(Gpu(*row) for row in rows if len(row) == 3 and row[0].isdecimal() and row[1].startswith("GPU-"))
