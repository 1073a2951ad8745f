"""Say at once, while a program still runs, that its settings cannot give the bits of the other side.

A rank's manifest lies on disk when its capture starts (versions, environment) and again at its first optimizer step (what the
program set, made and loaded). Each time it changes it is compared with the other side's, which ended before.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from opguard_core.contract.compare import Difference, compare_ranks
from opguard_core.errors import ContractStopped, TraceFormatError
from opguard_core.trace.manifest import MANIFEST_NAME, read_rank_manifest
from opguard_harness.access.traces import RANK_FOLDERS
from opguard_harness.report.progress import Progress

Contracts = dict[int, Mapping[str, Any]]
MAX_TOLD = 12  # lines; the answer has all of them


class ContractWatch:
    """Compares the contract of a side that runs with the one of a side that ended.

    Args:
        running: "reference" or "suspect".
        trace: Its trace directory, which may not be there yet.
        other: Trace directory of the other side.
        progress: Where to say what is found.
        stop: Raise instead of letting the program run on.
    """

    def __init__(self, running: str, trace: Path, other: Path, progress: Progress, *, stop: bool = False) -> None:
        """Nothing is read yet."""
        self._running, self._trace, self._other = running, trace, other
        self._progress, self._stop = progress, stop
        self._seen: dict[Path, tuple[int, int]] = {}
        self._contracts: Contracts = {}
        self._others: Contracts | None = None
        self._told: set[str] = set()

    def look(self) -> None:
        """Compare again if a manifest has changed.

        Raises:
            ContractStopped: A setting that changes arithmetic differs and ``stop`` was asked for.

        Cost: one listing and one status a rank; a small file read when it changed, twice a run.
        """
        if not self._read_changed():
            return
        if self._others is None:
            self._others = {rank: contract for path in _manifests(self._other) for rank, contract in _contract(path).items()}
        sides = (self._contracts, self._others) if self._running == "reference" else (self._others, self._contracts)
        found = [item for item in compare_ranks(*sides) if item.warns and item.key not in self._told]
        self._tell(found)
        if found and self._stop:
            named = "; ".join(item.sentence() for item in found[:MAX_TOLD])
            raise ContractStopped(f"The sides differ in settings that change arithmetic, so the {self._running} was ended: {named}.")

    def _tell(self, found: list[Difference]) -> None:
        for item in found:
            if len(self._told) < MAX_TOLD:
                self._progress.say(f"warning: contract: {item.sentence()}")
            elif len(self._told) == MAX_TOLD:
                self._progress.say("warning: contract: more differences that change arithmetic; the answer has them all")
            self._told.add(item.key)

    def _read_changed(self) -> bool:
        changed = False
        for path in _manifests(self._trace):
            try:
                status = path.stat()
            except OSError:
                continue  # replaced just now; the next look sees it
            mark = (status.st_mtime_ns, status.st_ino)
            if self._seen.get(path) != mark:
                self._seen[path] = mark
                self._contracts.update(_contract(path))
                changed = True
        return changed


def _manifests(trace: Path) -> list[Path]:
    return sorted(trace.glob(f"{RANK_FOLDERS}/{MANIFEST_NAME}"))


def _contract(path: Path) -> Contracts:
    """The contract of one rank; nothing where none is told yet, or of a manifest that cannot be read: that is the judge's to say."""
    try:
        manifest = read_rank_manifest(path.parent)
    except TraceFormatError:
        return {}
    return {manifest.rank: manifest.contract} if manifest.contract else {}
