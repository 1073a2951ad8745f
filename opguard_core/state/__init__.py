"""Everything a resumed training needs, in one file: `snapshot` writes it, `restore` puts it back, bit for bit.

    loader = state.ResumableLoader(torch.utils.data.DataLoader(...))
    state.snapshot("step-100.state", model=model, optimizer=optimizer, loader=loader, values={"step": 100})
    ...
    step = state.restore("step-100.state", model=model, optimizer=optimizer, loader=loader).values["step"]

Runs in the training's own process, with or without capture. The file is in the safetensors format and holds no code.
"""

from opguard_core.state.loader import ResumableLoader
from opguard_core.state.snapshot import Restored, inspect, restore, snapshot

__all__ = ["Restored", "ResumableLoader", "inspect", "restore", "snapshot"]
