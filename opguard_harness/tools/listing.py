"""Tool `list_runs`: runs, comparisons and jobs of the state folder in one list, and the most useful call to make on them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from opguard_harness.errors import InvalidArguments
from opguard_harness.interface.declaration import Next, Result, Tool, Truncated, argument
from opguard_harness.tools.budget import within
from opguard_harness.tools.job_result import MOST_WAIT_S
from opguard_harness.workspace.listing import KINDS, STATES, UNFINISHED, Entry, JobFacts, entries

_LIST_CHARS = 24_000
_FAILED = ("failed", "lost", "cancelled")


@dataclass(frozen=True)
class ListRunsArguments:
    case: str = argument("Only what was started for this case.", "", max_length=64)
    kind: str = argument("Only this kind.", "", pattern=f"^({'|'.join(KINDS)})?$")
    state: str = argument("Only this state.", "", pattern=f"^({'|'.join(STATES)})?$")
    limit: int = argument("Rows to return.", 12, ge=1, le=200)
    cursor: str = argument("`cursor` of the previous answer.", "", max_length=200)


@dataclass(frozen=True, kw_only=True)
class ListRunsResult(Result):
    """``runs``: each with id, kind, state, created, and where known verdict, mode and job tool."""

    runs: list[dict[str, Any]] = field(default_factory=list)


def list_runs(arguments: ListRunsArguments) -> ListRunsResult:
    """List what the state folder holds, newest first."""
    rows = entries(known_jobs())
    if arguments.case:
        rows = of_case(arguments.case, rows)
    if arguments.kind:
        rows = [row for row in rows if row.kind == arguments.kind]
    if arguments.state:
        rows = [row for row in rows if row.state == arguments.state]
    after = _after(arguments.cursor)
    left = [row for row in rows if row.place < after] if after else rows
    page = left[: arguments.limit]
    shown = within([brief(row) for row in page], _LIST_CHARS)
    cut = Truncated(len(shown), len(rows), _cursor(page[len(shown) - 1])) if len(shown) < len(left) else None
    return ListRunsResult(
        summary=_summary(arguments, rows, page[: len(shown)]),
        runs=shown,
        truncated=cut,
        next=leading(page[: len(shown)], arguments.case),
    )


def known_jobs() -> list[JobFacts]:
    """The jobs of the state folder, as a list of rows wants them."""
    from opguard_harness.jobs.listing import listed

    return [JobFacts(job.id, job.tool, job.state, _seconds(job.created), job.case) for job in listed()]


def _seconds(created: str) -> float:
    """Seconds since 1970 of a UTC time; 0 where none is known."""
    try:
        when = datetime.fromisoformat(created.replace("Z", "+00:00"))
    except ValueError:
        return 0.0
    return when.timestamp()


def of_case(case: str, rows: Iterable[Entry]) -> list[Entry]:
    """The rows that were started for a case.

    Raises:
        CaseNotFound: There is no such case.
    """
    from opguard_harness.workspace.cases import require_case

    found = require_case(case)
    noted = {item.job: place for place, item in enumerate(found.jobs)}
    own = [row for row in rows if row.id in noted]
    # What came out of a pack came at one time: the case tells the order in which it was made.
    return sorted(own, key=lambda row: noted[row.id], reverse=True) if found.is_opened else own


def brief(row: Entry) -> dict[str, Any]:
    """A row in plain form; what is not known is left out."""
    told = {"id": row.id, "kind": row.kind, "state": row.state, "verdict": row.verdict, "mode": row.mode, "created": row.created}
    return {key: value for key, value in told.items() if value}


def leading(rows: list[Entry], case: str = "") -> list[Next]:
    """The call that is most worth making on the rows of a page: what runs, else what was found, else what went wrong."""
    running = next((row for row in rows if row.job is not None and row.state in UNFINISHED), None)
    compared = next((row for row in rows if row.kind == "compare" and row.state == "succeeded"), None)
    failed = next((row for row in rows if row.job is not None and row.state in _FAILED), None)
    calls = []
    if running is not None:
        calls.append(Next("get_job", {"job": running.id, "wait_s": MOST_WAIT_S}, f"it is {running.state}"))
    if compared is not None:
        calls.append(Next("first_difference", {"comparison": compared.id}, "what the newest comparison found"))
    if failed is not None and (running is None or compared is None):
        calls.append(Next("get_job", {"job": failed.id}, f"why it is {failed.state}"))
    return calls or [Next("open_case", {"case": case} if case else {}, "begin, or go on where an investigation stopped")]


def _summary(arguments: ListRunsArguments, rows: list[Entry], page: list[Entry]) -> str:
    """How many there are, and what the newest of them says; words of ours only."""
    what = " ".join(word for word in (arguments.state, arguments.kind) if word)
    where = " of this case" if arguments.case else ""
    if not rows:
        return f"Nothing stored{f' is {what}' if what else ''}{where}."
    many = f"{len(rows)} {f'{what} ' if what else ''}{'entry' if len(rows) == 1 else 'entries'}{where}, newest first."
    unfinished = sum(row.state in UNFINISHED for row in page)
    return f"{many} {unfinished} of those shown not finished." if unfinished else many


def _cursor(row: Entry) -> str:
    """Where a row stands in the list, so that the list can go on behind it even if the row has gone."""
    return f"{row.created_s!r}~{row.id}"


def _after(cursor: str) -> tuple[float, str] | None:
    """The place that a cursor names; None without one."""
    if not cursor:
        return None
    when, mark, name = cursor.partition("~")
    try:
        place = float(when)
    except ValueError:
        place = float("nan")
    if not mark or math.isnan(place):
        raise InvalidArguments(
            f"list_runs: cursor {cursor[:80]!r} is none that this tool gave.", hint="Leave the cursor out to start over."
        )
    return place, name


TOOLS = (
    Tool(
        name="list_runs",
        group="runs",
        text="List stored runs, comparisons and jobs, newest first, unfinished and failed ones too. Use it to find an id, "
        "or what to go on with.",
        arguments=ListRunsArguments,
        result=ListRunsResult,
        run=list_runs,
        read_only=True,
    ),
)
