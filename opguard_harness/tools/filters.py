"""Tools about benign filters: say what one would hide, add or remove one, list them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from opguard_harness.errors import FilterRefused, InvalidArguments
from opguard_harness.tools.budget import within
from opguard_harness.tools.declaration import Evidence, Next, Result, Tool, Truncated, argument

if TYPE_CHECKING:
    from pathlib import Path

    from opguard_core.certify.filters import Filter
    from opguard_harness.workspace.filter_preview import Preview

_LIST_CHARS = 16_000
_FILE = "Filter file; empty for the state folder's own."


@dataclass(frozen=True)
class AddBenignFilterArguments:
    comparison: str = argument("The comparison that shows the difference: an id of `list_runs`, or its folder; not for removal.", "")
    evidence: list[str] = argument("Evidence id or URI of the boundary, of one side or one of each: `suspect:0:57`.", [], max_length=4)
    slot: str = argument("The one slot that differs, such as `out.1`.", "")
    reason: str = argument("Why this difference is harmless, in a sentence.", "", max_length=500)
    author: str = argument("Who says so.", "", max_length=100)
    filters: str = argument(_FILE, "")
    apply: bool = argument("Write the filter; without it, only say what it would hide.", False)
    remove: str = argument("Id of a filter to remove instead.", "", max_length=64)


@dataclass(frozen=True, kw_only=True)
class AddBenignFilterResult(Result):
    applied: bool
    path: str
    filter: dict[str, Any]
    preview: dict[str, Any] = field(default_factory=dict)


def add_benign_filter(arguments: AddBenignFilterArguments) -> AddBenignFilterResult:
    """Try one filter on the comparison that it comes from; write it only if that was asked for and it may hide that at all."""
    from opguard_harness.workspace.filter_evidence import filter_of
    from opguard_harness.workspace.filter_file import add_filter, filter_path, read_filters
    from opguard_harness.workspace.filter_preview import preview
    from opguard_harness.workspace.stored import answer_of

    path = filter_path(arguments.filters)
    if arguments.remove:
        return _remove(arguments, path)
    missing = [name for name in ("comparison", "evidence", "slot", "reason") if not getattr(arguments, name)]
    if missing:
        raise InvalidArguments(f"add_benign_filter needs {', '.join(missing)}; a filter has one place, one slot, a reason and evidence.")
    answer = answer_of(arguments.comparison)
    made = filter_of(answer, arguments.evidence, arguments.slot, arguments.reason, arguments.author)
    present = read_filters(path)
    tried = preview(answer, [made], beside=present)
    if arguments.apply and tried.refused:
        raise FilterRefused(f"Not written. {tried.refused}")
    if arguments.apply:
        add_filter(path, made)
    return AddBenignFilterResult(
        summary=_outcome(made, tried, applied=arguments.apply),
        applied=arguments.apply,
        path=str(path),
        filter=made.as_dict(),
        preview=tried.as_dict(),
        evidence=[Evidence(f"filter:{made.id}", uri, f"{made.operator} {made.slot}") for uri in made.evidence],
        next=_following(arguments, tried),
    )


def _remove(arguments: AddBenignFilterArguments, path: Path) -> AddBenignFilterResult:
    """Take one filter out of the file."""
    from opguard_harness.workspace.filter_file import remove_filter

    given = [name for name in ("comparison", "evidence", "slot", "reason", "author", "apply") if getattr(arguments, name)]
    if given:
        raise InvalidArguments(f"add_benign_filter either removes a filter or adds one; with `remove`, leave {', '.join(given)} out.")
    removed = remove_filter(path, arguments.remove)
    return AddBenignFilterResult(summary=f"Removed filter {removed.id}.", applied=True, path=str(path), filter=removed.as_dict())


def _outcome(made: Filter, tried: Preview, *, applied: bool) -> str:
    """What happened, in words of ours only."""
    before, after = tried.before["verdict"], tried.after["verdict"]
    hits = sum(entry["hits"] for entry in tried.entries)
    verdict = f"the verdict goes from {before} to {after}" if tried.changes_verdict else f"the verdict stays {before}"
    if tried.refused:
        return f"Filter {made.id} names a difference that no filter may hide; {verdict}. Nothing was written."
    effect = f"hides {hits} {'difference' if hits == 1 else 'differences'} in that comparison; {verdict}"
    return f"Filter {made.id} {effect}. {'Written.' if applied else 'Dry run: nothing was written.'}"


def _following(arguments: AddBenignFilterArguments, tried: Preview) -> list[Next]:
    if arguments.apply or tried.refused:
        return [] if tried.refused else [Next("list_filters", {"filters": arguments.filters}, "see all filters of the file")]
    again = {name: getattr(arguments, name) for name in ("comparison", "evidence", "slot", "reason", "author", "filters")}
    return [Next("add_benign_filter", {**again, "apply": True}, "write it")]


@dataclass(frozen=True)
class ListFiltersArguments:
    filters: str = argument(_FILE, "")
    cursor: str = argument("Continue after this id of a cut list.", "", max_length=64)


@dataclass(frozen=True, kw_only=True)
class ListFiltersResult(Result):
    path: str
    filters: list[dict[str, Any]]


def list_filters(arguments: ListFiltersArguments) -> ListFiltersResult:
    """Read a filter file."""
    from opguard_harness.workspace.filter_file import filter_path, read_filters

    path = filter_path(arguments.filters)
    found = read_filters(path, required=bool(arguments.filters))
    left = [rule.as_dict() for rule in found if rule.id > arguments.cursor]
    shown = within(left, _LIST_CHARS) or left[:1]
    cut = Truncated(len(shown), len(left), shown[-1]["id"]) if len(shown) < len(left) else None
    count = f"{len(found)} {'filter' if len(found) == 1 else 'filters'}"
    return ListFiltersResult(
        summary=f"{count}; they apply only to comparisons that name the file." if found else "No filters.",
        path=str(path),
        filters=shown,
        truncated=cut,
    )


TOOLS = (
    Tool(
        name="add_benign_filter",
        group="filters",
        text="Say what a benign filter would hide, and with `apply` write it; `remove` takes one out. A filter hides one slot of one "
        "operator at one place, never an update, a gradient or the loss. Use it on a difference that you can show to be harmless.",
        arguments=AddBenignFilterArguments,
        result=AddBenignFilterResult,
        run=add_benign_filter,
        read_only=False,
    ),
    Tool(
        name="list_filters",
        group="filters",
        text="List the benign filters of a file, each with its reason and evidence. Use it before you trust an answer with filters.",
        arguments=ListFiltersArguments,
        result=ListFiltersResult,
        run=list_filters,
        read_only=True,
    ),
)
