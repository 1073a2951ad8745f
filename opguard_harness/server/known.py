"""Ids that exist now, newest first: for completing what a person types and for the list of resources."""

from __future__ import annotations

from opguard_harness.tools.listing import known_jobs
from opguard_harness.workspace.cases import all_cases
from opguard_harness.workspace.listing import Entry, entries

COMPLETED_SHOWN = 100  # the protocol's limit on completions


def case_ids() -> list[str]:
    """Cases that can be read."""
    return [case.id for case in all_cases()[0]]


def stored() -> list[Entry]:
    """Runs, comparisons and jobs."""
    return entries(known_jobs())


def ids_of(kind: str) -> list[str]:
    """The ids that an argument of that name takes; none of a name that takes no ids.

    Args:
        kind: Name of an argument of a prompt, or of a variable of a resource's address.
    """
    if kind == "case":
        return case_ids()
    if kind == "job":
        return [row.id for row in stored() if row.job is not None]
    if kind == "run":
        return [row.id for row in stored() if row.path is not None]
    if kind in ("reference", "suspect"):
        return [row.id for row in stored() if row.kind == "run" and row.state == "succeeded"]
    return []


def completed(kind: str, begun: str) -> tuple[list[str], int]:
    """The ids that begin so, at most as many as a client may be sent, and how many there are."""
    found = [name for name in ids_of(kind) if name.startswith(begun)]
    return found[:COMPLETED_SHOWN], len(found)
