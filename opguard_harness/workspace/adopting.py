"""Results that no case notes yet: a case may take in those of programs that lie in its root, and no others.

An investigation often begins with a comparison and gets its case afterwards; nothing has to be run again for that.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from opguard_core.errors import OpGuardError
from opguard_core.evidence.refs import EventRef, JobRef, parse
from opguard_harness.compare.programs import read_programs
from opguard_harness.config import runs_dir
from opguard_harness.workspace.cases import Case, all_cases, note_job
from opguard_harness.workspace.evidence import source_named, trace_named

_LOOKED_AT = 50


def adopt(case: Case, evidence: Iterable[str]) -> bool:
    """Note the results that some evidence is from, where no case notes them and their programs lie in the root of this one.

    Args:
        case: The case.
        evidence: Ids that resolve.

    Returns:
        Whether any was noted.
    """
    free = {job for item in evidence if (job := _holder(item)) and _fits(case, job)} - _noted()
    for job in sorted(free):
        note_job(case.id, job)
    return bool(free)


def loose(case: Case, results: Iterable[str]) -> str:
    """The first of some results that no case notes and whose programs lie in the root; empty if there is none.

    Args:
        case: The case.
        results: Ids of comparisons, the newest first.
    """
    noted = _noted()
    looked_at = [job for job in results if job not in noted][:_LOOKED_AT]
    return next((job for job in looked_at if _fits(case, job)), "")


def _noted() -> set[str]:
    return {noted.job for case in all_cases()[0] for noted in case.jobs}


def _holder(evidence: str) -> str:
    """The result folder that a record lies in; empty if it lies elsewhere."""
    reference = parse(evidence)
    if isinstance(reference, JobRef):
        return reference.holder
    try:
        trace = trace_named(reference.trace) if isinstance(reference, EventRef) else source_named(reference)[0]
    except OpGuardError:
        return ""
    return trace.relative_to(runs_dir()).parts[0] if trace.is_relative_to(runs_dir()) else ""


def _fits(case: Case, job: str) -> bool:
    """Whether the programs of a result lie in the root of a case; not so where nothing tells which they were."""
    try:
        programs = read_programs(runs_dir() / job)
    except OpGuardError:
        return False
    return all(Path(program.folder).resolve().is_relative_to(case.root) for program in programs.both)
