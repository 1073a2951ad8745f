"""Bytes fingerprinted again, by another implementation than the one that captured them, and held against the digest in the trace.

Small blocks go through the oracle, which shares no arithmetic with any twin. Larger ones go through the numpy twin and, where there is a
compiler, the compiled one: whichever of them captured, the other one did not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from opguard_core.evidence.damage.elements import Block, of_block
from opguard_core.fingerprint import cpu, native, numpy_twin, reference

ORACLE_ELEMENTS = 1 << 13
"""Elements up to which the oracle is asked, which takes 10 us for each."""


@dataclass(frozen=True)
class Again:
    """A second fingerprint.

    Attributes:
        mix64: By implementation ("oracle", "numpy", "native"), what it says.
        recorded: What the trace says.
    """

    mix64: dict[str, int]
    recorded: int

    @property
    def equal(self) -> bool:
        """Whether the bytes are the ones that were fingerprinted."""
        return set(self.mix64.values()) == {self.recorded}

    def as_dict(self) -> dict[str, Any]:
        """Plain form for JSON; digests as hexadecimal words."""
        words = {name: f"0x{word:016x}" for name, word in self.mix64.items()}
        return {"mix64": words, "recorded": f"0x{self.recorded:016x}", "equal": self.equal}


def again(block: Block, recorded: int) -> Again:
    """Fingerprint a block once more.

    Args:
        block: The bytes.
        recorded: mix64 of the trace.

    Raises:
        ValueError: The block has not as many bytes as its shape says.

    Cost: 10 us an element up to `ORACLE_ELEMENTS`, 6 ns beyond.
    """
    elements = of_block(block)
    codes = elements.read(block)
    number = codes.size // elements.element.num_components
    if number <= ORACLE_ELEMENTS and elements.kind != "bits":
        data = np.frombuffer(block.data, dtype=np.uint8).view(f"V{elements.element.item_bytes}")
        return Again({"oracle": reference.fingerprint(data, elements.element.name).mix64}, recorded)
    held = np.ascontiguousarray(codes)
    found = {"numpy": numpy_twin.fingerprint(held.ctypes.data, elements.element, (number,), (1,)).mix64}
    if isinstance(cpu.implementation(), native.Native):
        found["native"] = cpu.Reader(elements.element, (number,), (1,)).read(held.ctypes.data).mix64
    return Again(found, recorded)
