"""Runs code under a capture session that writes a real trace, keeps boundaries of it or transplants into it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from opguard_core.capture.session import start
from opguard_core.plan.config import RunConfig
from opguard_core.plan.keeping import Keep, Transplant, kept_file
from opguard_core.trace.boundary import BoundaryKey, keys_of
from opguard_core.trace.kept import Kept, read_kept
from opguard_core.trace.reader import RankTrace
from tests.support.capturing import ROOT, left_over, own_gaps


class Observed:
    """One observed run of a piece of code.

    Attributes:
        folder: Its run folder.
        trace: The trace of its only rank.
        result: What the code returned.
        left: Threads that were there before it, see `left_over`.
    """

    def __init__(self, folder: Path, result: Any, left: list[str]) -> None:
        self.folder, self.result, self.left = folder, result, left
        self.trace = RankTrace.open(folder / "rank-00000")

    def keys(self, *operators: str) -> list[BoundaryKey]:
        """Keys of its operators in order; only of those with these base names, if any are named."""
        found = []
        for table in self.trace.iter_windows():
            wanted = []
            for index in range(len(table)):
                event = table.event(index)
                if event.kind in ("operator", "collective") and (not operators or event.operator.split(".")[1] in operators):
                    wanted.append(event.seq)
            found += keys_of(self.trace, 0, table, wanted).values()
        return found

    def kept(self, index: int = 0) -> Kept:
        """A boundary that it was asked to keep."""
        return read_kept(self.kept_path(index))

    def kept_path(self, index: int = 0) -> Path:
        """The file of a boundary that it was asked to keep."""
        return self.folder / "rank-00000" / kept_file(index)

    @property
    def facts(self) -> dict[str, Any]:
        """What the rank's manifest says about kept and transplanted boundaries."""
        return self.trace.manifest.extra

    @property
    def gaps(self) -> dict[str, Any]:
        """Gaps by reason."""
        return own_gaps(self.trace.manifest.coverage["gaps"], self.left)


def observe(
    folder: Path,
    code: Callable[[], Any],
    *,
    keep: Sequence[BoundaryKey] = (),
    limit_bytes: int = 1 << 28,
    transplants: Sequence[Transplant] = (),
    mode: str = "verify",
    **options: Any,
) -> Observed:
    """Run a function under capture; its trace lies in ``folder``."""
    folder.mkdir()
    asked = Keep(tuple(keep), limit_bytes) if keep else None
    left = left_over()
    session = start(RunConfig(run_dir=folder, user_root=ROOT, mode=mode, keep=asked, transplants=tuple(transplants), **options))
    try:
        result = code()
    finally:
        session.stop("exit")
    return Observed(folder, result, left)
