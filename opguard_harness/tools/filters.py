"""Tools about benign filters: say what one would hide, add or remove one, list them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from opguard_core.ids import SIDES
from opguard_harness.access.rules import current
from opguard_harness.access.untrusted import one_line
from opguard_harness.errors import FilterRefused, InvalidArguments
from opguard_harness.interface.declaration import Evidence, Next, Result, Role, Tool, Truncated, argument
from opguard_harness.tools.budget import first_fitting, within

if TYPE_CHECKING:
    from pathlib import Path

    from opguard_core.certify.filters import Filter
    from opguard_harness.workspace.filter_preview import Preview

_LIST_CHARS = 12_000
_ANSWER_CHARS = 6_000
_PLACES_SHOWN = (10, 3, 1, 0)
_TEXT_CHARS = 200
_CASE = "The case whose filter file is meant."
_FILE = "Another filter file, if any."


@dataclass(frozen=True)
class AddBenignFilterArguments:
    comparison: str = argument("The comparison that shows the difference.", "", role=Role.STORED)
    evidence: list[str] = argument("ev: id of the boundary, of one side or one of each.", [], max_length=4)
    slot: str = argument("The one slot that differs; empty: the one that the ids name.", "")
    reason: str = argument("Why this difference is harmless, in a sentence.", "", max_length=500)
    author: str = argument("Who says so.", "", max_length=100)
    case: str = argument(_CASE, "", max_length=64)
    filters: str = argument(_FILE, "", role=Role.FILE)
    apply: bool = argument("Write it; else only say what it would hide.", False)
    remove: str = argument("Id of a filter to remove instead.", "", max_length=64)


@dataclass(frozen=True, kw_only=True)
class AddBenignFilterResult(Result):
    """``preview``: verdict before and after, and what the filter hides; a pivot only where it moves."""

    applied: bool
    path: str
    filter: dict[str, Any]
    preview: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Trial:
    """One filter tried on the comparison that it comes from."""

    answer: dict[str, Any]
    path: Path
    made: Filter
    effect: Preview


def try_filter(arguments: AddBenignFilterArguments) -> Trial:
    """Try one filter; write it only if that was asked for and it may hide that at all.

    Raises:
        InvalidArguments: Something that makes a filter is missing.
        FilterRefused: It was to be written and may not.
    """
    from opguard_harness.workspace.filter_evidence import filter_of, slot_named
    from opguard_harness.workspace.filter_file import add_filter, read_filters
    from opguard_harness.workspace.filter_preview import preview
    from opguard_harness.workspace.stored import answer_of

    path = _file(arguments.case, arguments.filters, written=arguments.apply)
    slot = arguments.slot or slot_named(arguments.evidence)
    given = {"comparison": arguments.comparison, "evidence": arguments.evidence, "slot": slot, "reason": arguments.reason}
    missing = [name for name, value in given.items() if not value]
    if missing:
        raise InvalidArguments(
            f"add_benign_filter needs {', '.join(missing)}; a filter has one place, one slot, a reason and evidence.",
            hint="Take comparison and evidence from `first_difference` or `list_differences`.",
        )
    answer = answer_of(arguments.comparison)
    made = filter_of(answer, arguments.evidence, slot, arguments.reason, arguments.author)
    effect = preview(answer, [made], beside=read_filters(path))
    if arguments.apply and effect.refused:
        raise FilterRefused(
            f"Not written: filter {made.id} names a difference that no filter may hide: an update, a gradient, state or the loss.",
            next=[Next("first_difference", {"comparison": arguments.comparison}, "follow that difference instead")],
        )
    if arguments.apply:
        add_filter(path, made)
    return Trial(answer, path, made, effect)


def add_benign_filter(arguments: AddBenignFilterArguments) -> AddBenignFilterResult:
    """Try a filter, write it if asked to, or remove one."""
    if arguments.remove:
        return _remove(arguments, _file(arguments.case, arguments.filters, written=True))
    trial = try_filter(arguments)

    def build(places: int) -> AddBenignFilterResult:
        return AddBenignFilterResult(
            summary=outcome(trial, applied=arguments.apply),
            applied=arguments.apply,
            path=str(trial.path),
            filter=_shortened(trial.made.as_dict()),
            preview=_brief(trial.effect, places),
            evidence=_cited(trial, arguments.evidence),
            next=_following(arguments, trial),
        )

    return first_fitting(_PLACES_SHOWN, build, _ANSWER_CHARS)


def _file(case: str, filters: str, *, written: bool = False) -> Path:
    """The filter file that is meant.

    Raises:
        InvalidArguments: Two were named.
        CaseNotFound: There is no such case.
        OutsideRoots: It is to be written, and lies where nothing is.
        OpenedReadOnly: It is to be written, and its case came out of a pack.
    """
    from opguard_harness.workspace.cases import require_case, require_writable
    from opguard_harness.workspace.filter_file import filter_path

    if case and filters:
        raise InvalidArguments("Give `case` or `filters`, not both: each names a filter file.", hint="Leave one of them out.")
    known = require_writable if written else require_case
    path = known(case).folder / "filters.json" if case else filter_path(filters)
    return current().output(path, "filters") if written else current().path(path, "filters")


def _cited(trial: Trial, given: list[str]) -> list[Evidence]:
    """The evidence of a filter, under ids that can be looked up."""
    from opguard_harness.workspace.evidence import evidence
    from opguard_harness.workspace.filter_evidence import references_of

    quote = one_line(f"{trial.made.operator} {trial.made.slot}", _TEXT_CHARS)
    return [evidence(reference, quote) for reference in references_of(trial.answer, given, trial.made.slot)]


def _brief(effect: Preview, places: int) -> dict[str, Any]:
    """A preview with so many hidden places; what is the same before and after, or stands in the filter, is said once."""
    told = effect.as_dict()
    judged = {
        when: {key: told[when][key] for key in ("verdict", "reasons", *(["pivot"] if effect.changes_verdict else [])) if told[when][key]}
        for when in ("before", "after")
    }
    counts = ("hits", "partly", "refused")
    hides = [{**{key: rule[key] for key in counts}, "hidden": rule["hidden"][:places]} for rule in told["filters"]]
    kept = {key: told[key] for key in ("verdict_changes", "pairs_hidden", "differences_hidden")}
    brief: dict[str, Any] = _shortened({**judged, **kept, **(hides[0] if hides else {})})
    return brief


def _shortened(value: Any) -> Any:
    """The same with texts of bounded length."""
    if isinstance(value, str):
        return one_line(value, _TEXT_CHARS) if len(value) > _TEXT_CHARS else value
    if isinstance(value, dict):
        return {key: _shortened(item) for key, item in value.items()}
    return [_shortened(item) for item in value] if isinstance(value, list) else value


def _remove(arguments: AddBenignFilterArguments, path: Path) -> AddBenignFilterResult:
    """Take one filter out of the file."""
    from opguard_harness.workspace.filter_file import remove_filter

    given = [name for name in ("comparison", "evidence", "slot", "reason", "author", "apply") if getattr(arguments, name)]
    if given:
        raise InvalidArguments(f"add_benign_filter either removes a filter or adds one; with `remove`, leave {', '.join(given)} out.")
    removed = remove_filter(path, arguments.remove)
    return AddBenignFilterResult(
        summary=f"Removed filter {removed.id}.",
        applied=True,
        path=str(path),
        filter=_shortened(removed.as_dict()),
        next=[Next("list_filters", _where(arguments.case, arguments.filters), "what is left")],
    )


def outcome(trial: Trial, *, applied: bool) -> str:
    """What happened, in words of ours only."""
    made, effect = trial.made, trial.effect
    before, after = effect.before["verdict"], effect.after["verdict"]
    hits = sum(entry["hits"] for entry in effect.entries)
    verdict = f"the verdict goes from {before} to {after}" if effect.changes_verdict else f"the verdict stays {before}"
    if effect.refused:
        return f"Filter {made.id} names a difference that no filter may hide; {verdict}. Nothing was written."
    hidden = f"hides {hits} {'difference' if hits == 1 else 'differences'} in that comparison; {verdict}"
    return f"Filter {made.id} {hidden}. {'Written.' if applied else 'Dry run: nothing was written.'}"


def _where(case: str, filters: str) -> dict[str, str]:
    """The arguments that name the same filter file."""
    return {key: value for key, value in (("case", case), ("filters", filters)) if value}


def _following(arguments: AddBenignFilterArguments, trial: Trial) -> list[Next]:
    where = _where(arguments.case, arguments.filters)
    if trial.effect.refused:
        return [Next("first_difference", {"comparison": arguments.comparison}, "follow that difference instead")]
    if arguments.apply:
        sides = {side: trial.answer["trace"][side] for side in SIDES}
        case = {"case": arguments.case} if arguments.case else {}
        return [
            Next("align", {**sides, "filters": str(trial.path), **case}, "judge both traces again with this file"),
            Next("list_filters", where, "all filters of the file"),
        ]
    again = {name: getattr(arguments, name) for name in ("comparison", "evidence", "slot", "reason", "author") if getattr(arguments, name)}
    return [Next("add_benign_filter", {**again, **where, "apply": True}, "write it")]


@dataclass(frozen=True)
class ListFiltersArguments:
    case: str = argument(_CASE, "", max_length=64)
    filters: str = argument(_FILE, "", role=Role.FILE)
    cursor: str = argument("`cursor` of the previous answer.", "", max_length=64)


@dataclass(frozen=True, kw_only=True)
class ListFiltersResult(Result):
    path: str
    filters: list[dict[str, Any]]


def list_filters(arguments: ListFiltersArguments) -> ListFiltersResult:
    """Read a filter file."""
    from opguard_harness.workspace.filter_file import read_filters

    path = _file(arguments.case, arguments.filters)
    found = read_filters(path, required=bool(arguments.filters))
    left = [_shortened(rule.as_dict()) for rule in found if rule.id > arguments.cursor]
    shown = within(left, _LIST_CHARS) or left[:1]
    cut = Truncated(len(shown), len(left), shown[-1]["id"]) if len(shown) < len(left) else None
    count = f"{len(found)} {'filter' if len(found) == 1 else 'filters'}"
    return ListFiltersResult(
        summary=f"{count}; they apply only to comparisons whose `filters` names this file." if found else "No filters.",
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
