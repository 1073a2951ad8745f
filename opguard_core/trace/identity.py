"""What makes a trace this trace: one digest over the manifests and indexes of its ranks, which promise every segment.

Defined for a torn trace as well, and cheap: no segment is read. The run's own manifest is left out, since its launcher
finishes it after the ranks have ended. No pyarrow here.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from opguard_core.trace.files import read_checked
from opguard_core.trace.index import INDEX_NAME, MAX_INDEX_BYTES
from opguard_core.trace.manifest import MANIFEST_NAME, MAX_MANIFEST_BYTES

_FILES = ((MANIFEST_NAME, MAX_MANIFEST_BYTES), (INDEX_NAME, MAX_INDEX_BYTES))


def trace_digest(path: Path) -> str:
    """Digest of a run's folder, 64 hex digits; the same wherever the folder lies.

    A trace that is still being written, or that was changed, has another one.

    Raises:
        TraceFormatError: A manifest or index is a link, no file, or far too large.
        OSError: The folder cannot be listed.
    """
    found = hashlib.sha256(b"opguard-trace-1")
    for folder in sorted(entry for entry in path.iterdir() if entry.name.startswith("rank-") and entry.is_dir()):
        for name, limit in _FILES:
            file = folder / name
            text = hashlib.sha256(read_checked(file, limit=limit)).hexdigest() if os.path.lexists(file) else "none"
            found.update(f"\n{folder.name} {name} {text}".encode("utf-8", "surrogatepass"))
    return found.hexdigest()
