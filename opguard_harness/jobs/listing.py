"""All jobs in a list. Standard library only: listing them must stay instant."""

from __future__ import annotations

from dataclasses import dataclass

from opguard_harness.errors import JobDamaged, JobNotFound
from opguard_harness.jobs.folder import job_ids
from opguard_harness.jobs.standing import standing


@dataclass(frozen=True)
class Listed:
    """One job. ``created``: UTC, ISO 8601. A damaged one has the state "damaged" and nothing else."""

    id: str
    tool: str
    state: str
    phase: str
    created: str
    case: str


def listed() -> list[Listed]:
    """All jobs, newest first."""
    found = []
    for job in job_ids():
        try:
            one = standing(job, look=False)
        except JobDamaged:
            found.append(Listed(job, "", "damaged", "", "", ""))
        except JobNotFound:
            continue  # removed just now
        else:
            found.append(Listed(job, one.tool, one.state, one.phase, one.created, one.case))
    return sorted(found, key=lambda item: (item.created, item.id), reverse=True)
