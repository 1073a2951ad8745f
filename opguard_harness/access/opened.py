"""The mark on what came out of a pack: it is read, and nothing that stands in it is ever started.

``opened.json`` lies beside an answer (and beside a case); a pack cannot bring one. It also says where the traces lie here, since an
answer names where they lay when it was made, and stays as it is, byte for byte.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opguard_core.ids import SIDES
from opguard_core.trace.files import read_checked
from opguard_harness.config import state_dir
from opguard_harness.errors import OpenedReadOnly, PackDamaged

MARK = "opened.json"
FORMAT = 1
_MAX_BYTES = 1 << 20


@dataclass(frozen=True)
class Opened:
    """Where something came from.

    Attributes:
        pack: Digest of the pack's list of files.
        case: Case that it was opened as.
        of: Id of the case where it was packed.
        sources: Whether source texts came with it.
        traces: Folder of each side's trace, below the state folder; empty of what is no comparison.
        approved: Whether a person approved the filters that came with it.
        left_out: How many things the pack says were left out.
    """

    pack: str
    case: str
    of: str
    sources: bool
    traces: dict[str, str]
    approved: bool
    left_out: int

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as the file holds them."""
        return {"format": FORMAT, **vars(self)}

    def trace(self, side: str) -> Path:
        """The trace of a side; a folder that is not there, if the pack was made when it had gone."""
        return state_dir() / self.traces.get(side, f"not-packed/{side}")


def opened(folder: Path) -> Opened | None:
    """The mark of a folder; None of what was made here.

    Raises:
        PackDamaged: There is a mark that we did not write.
    """
    path = folder / MARK
    if not os.path.lexists(path):
        return None
    try:
        found = json.loads(read_checked(path, limit=_MAX_BYTES))
        if found.pop("format") != FORMAT or not all(side in SIDES and isinstance(name, str) for side, name in found["traces"].items()):
            raise ValueError("another format")
        return Opened(**found)
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise PackDamaged(f"{path} is not the mark that was written when a pack was opened.", hint="Open the pack again.") from error


def without_sources(trace: Path) -> str:
    """Why a trace has no source texts, if that is because its pack was made so; else empty. A sentence to add, with its space."""
    for folder in trace.parents:
        mark = opened(folder)
        if mark is not None:
            return "" if mark.sources else " Its pack was made without source texts; ask for one made with --include-sources."
    return ""


def refuse_opened(path: Path, what: str) -> None:
    """Refuse to start anything in what came out of a pack.

    Args:
        path: A file or folder, links followed.
        what: What messages call it.

    Raises:
        OpenedReadOnly: It lies in something that was opened from a pack.
    """
    if any(os.path.lexists(folder / MARK) for folder in (path, *path.parents)):
        raise OpenedReadOnly(f"{what}: {path} came out of a pack, and nothing in it is started.")


__all__ = ["MARK", "Opened", "opened", "refuse_opened", "without_sources"]
