"""What a window says of an operator's reads when nobody saw who wrote them, or what they held was not looked at again."""

from __future__ import annotations

import numpy as np

from opguard_core.align import slots
from opguard_core.align.columns import PROBED, Window
from opguard_core.ids import Origin


def is_state(window: Window, row: int) -> bool:
    """A row's memory is named state, now or later in the window: what replaces a weight has no name before its first backward pass."""
    storage = int(window.storage[row])
    same = window.storage == storage if storage >= 0 else np.arange(len(window.storage)) == row
    return any(not window.text(int(name)).startswith("grad:") for name in np.unique(window.tensor[same]).tolist() if name)


def doubts(reference: Window, suspect: Window, inputs: slots.Matched) -> list[str]:
    """What an `operator` origin cannot exclude: inputs that were not read again, or are not known at all."""
    found = []
    if (inputs.code == slots.UNKNOWN).any():
        found.append(str(Origin.UNOBSERVED_PRODUCER))
    probed = (reference.status[inputs.left] == PROBED) & (suspect.status[inputs.right] == PROBED)
    if not probed.all():
        found.append(str(Origin.MUTATED))
    return found
