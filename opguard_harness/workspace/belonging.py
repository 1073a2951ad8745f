"""Whose evidence is it: which run of a case recorded what a finding cites, and on which side.

A record of another case may exist and say what a claim says, and still tell nothing about this case.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from opguard_core.errors import OpGuardError
from opguard_core.evidence.refs import EventRef, JobRef, SourceRef, parse
from opguard_core.ids import SIDES
from opguard_core.trace.sources import SOURCES_NAME
from opguard_harness.workspace.cases import Case
from opguard_harness.workspace.evidence import digest_of, traces_of
from opguard_harness.workspace.stored import ANSWER_FILE, answer_of, folder_of


class Belonging:
    """What was recorded by the jobs that a case notes; each job is looked into once, the oldest first.

    Cost: manifests and indexes of the traces up to the one that is asked for.
    """

    def __init__(self, case: Case) -> None:
        """Nothing is read yet."""
        self._jobs = [noted.job for noted in case.jobs]
        self._traces: dict[str, list[tuple[str, Path]]] = {}

    def label(self, evidence: str) -> str:
        """Who recorded it, such as ``suspect of compare-0123456789ab``; empty if no job of the case did.

        Args:
            evidence: An id.

        Raises:
            EvidenceInvalid: It is none.
        """
        reference = parse(evidence)
        if isinstance(reference, JobRef):
            return reference.holder if reference.holder in self._jobs else ""
        for job in self._jobs:
            sides = [side for side, trace in self._of(job) if _holds(trace, reference)]
            if sides:
                return f"{' and '.join(dict.fromkeys(sides))} of {job}" if sides[0] else job
        return ""

    def _of(self, job: str) -> list[tuple[str, Path]]:
        """Traces of a job, each with its side; none where the job has left none."""
        if job not in self._traces:
            try:
                self._traces[job] = list(_sided(job))
            except OpGuardError:
                self._traces[job] = []
        return self._traces[job]


def _sided(job: str) -> Iterator[tuple[str, Path]]:
    """Traces with the side that each was; a single run has none."""
    named = answer_of(job)["trace"] if (folder_of(job) / ANSWER_FILE).exists() else {}
    sides = {Path(path): side for side, path in named.items()}
    for trace in dict.fromkeys(traces_of(job)):
        yield sides.get(trace) or next((side for side in SIDES if side in trace.parts[-2:-1]), ""), trace


def _holds(trace: Path, reference: EventRef | SourceRef) -> bool:
    if isinstance(reference, SourceRef):
        return any((trace / SOURCES_NAME).glob(f"{reference.digest}*.py*"))
    try:
        return digest_of(trace).startswith(reference.trace)
    except OpGuardError:
        return False  # it is gone or damaged; who looks the record up says so
