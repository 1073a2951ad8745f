"""Tool `align`: compare two runs that are stored already."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from opguard_harness.interface.declaration import Kind, Role, Tool, argument
from opguard_harness.report.progress import Progress
from opguard_harness.tools import sides
from opguard_harness.tools.answers import Found
from opguard_harness.tools.leads import leads
from opguard_harness.tools.verdict import VerdictResult, facts_of

if TYPE_CHECKING:
    from opguard_harness.compare.request import CompareRequest

_WAIT_S = 20.0


@dataclass(frozen=True)
class AlignArguments:
    reference: str = argument("The run that is right: an id of `list_runs`, or a trace directory.", role=Role.STORED)
    suspect: str = argument("The run in question, named likewise.", role=Role.STORED)
    filters: str = argument(sides.FILTERS, "", role=Role.FILE)
    case: str = argument(sides.CASE, "")
    token: str = argument(sides.RUN_AGAIN, "", max_length=64)


def align(arguments: AlignArguments, progress: Progress) -> VerdictResult:
    """Pair the boundaries of two stored runs and certify what is equal; the comparison is kept under the job's id."""
    from opguard_harness.compare.pipeline import compare
    from opguard_harness.workspace.stored import result_folder

    out = result_folder(progress.job, "align")
    answer = compare(replace(request_of(arguments), out=out), progress)
    return VerdictResult(**facts_of(answer, out.name), evidence=Found(answer, out.name).itself(), next=leads(answer, out.name))


def request_of(arguments: AlignArguments) -> CompareRequest:
    """What is asked for.

    Raises:
        SideNotFound: A run is not there, or is a comparison.
        FiltersDamaged: The filter file cannot be used.
    """
    from opguard_harness.compare.request import CompareRequest, SideRequest
    from opguard_harness.workspace.filter_file import filters_named
    from opguard_harness.workspace.stored import trace_of

    both = SideRequest(trace_of(arguments.reference)), SideRequest(trace_of(arguments.suspect))
    return CompareRequest(*both, filters=filters_named(arguments.filters))


TOOLS = (
    Tool(
        name="align",
        group="compare",
        text="Pair the boundaries of two stored runs and certify how far they are equal. Use it after two `run_guarded` calls; "
        "`first_difference` reads the comparison that it stores.",
        arguments=AlignArguments,
        result=VerdictResult,
        run=align,
        check=request_of,
        read_only=False,
        kind=Kind.JOB,
        wait_s=_WAIT_S,
    ),
)
