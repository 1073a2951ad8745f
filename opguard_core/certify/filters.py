"""Benign filters as values: one difference at one place that somebody declared harmless, with a reason and evidence.

A filter names one expression (on one side, or one on each), one operator and one slot. It follows its expression when
lines move or white space changes, like every place of an answer; it never goes by line. What it may hide at all is
decided in `protected`, what it did hide is counted in `hiding`. Text in a filter is data that a person wrote: it is
bounded here and escaped where it is shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Any

from opguard_core.align.vocabulary import fold_operator, squash
from opguard_core.certify.verdict import Place
from opguard_core.errors import FilterInvalid
from opguard_core.ids import SIDES

MAX_SHARE = 0.05
"""Share of all pairs that filters may hide before there is no verdict."""

MAX_TEXT_CHARS = 4_000
MAX_REASON_CHARS = 500
MAX_AUTHOR_CHARS = 100
MAX_EVIDENCE = 4

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SLOT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,199}")
_OPERATOR = re.compile(r"[A-Za-z0-9_]+([.:]+[A-Za-z0-9_<>]+)*")
_EVIDENCE = re.compile(r".+#rank=\d{1,9}&seq=\d{1,18}|(reference|suspect):\d{1,9}:\d{1,18}", re.DOTALL)
_KEYS = frozenset({"id", "operator", "slot", *SIDES, "reason", "evidence", "created", "author"})
_SITE_KEYS = frozenset({"file", "function", "text"})


@dataclass(frozen=True)
class Site:
    """One expression in one function of one file, as in a place of an answer; white space in ``text`` does not count."""

    file: str
    function: str
    text: str

    def is_at(self, place: Place | None) -> bool:
        """True if a place is this expression, whatever line it is on."""
        if place is None or (self.file, self.function) != (place.file, place.function):
            return False
        return squash(self.text) == squash(place.text)


@dataclass(frozen=True)
class Filter:
    """One declared benign difference.

    Attributes:
        id: Stable name, for the counts.
        operator: Operator at the place; overload and in-place underscore are ignored, as in alignment.
        slot: The one slot that differs (``out.1``; ``in.0`` of a value told to Python).
        reference: Its place on the reference's side, None when only the other side is named.
        suspect: Its place on the suspect's side. With both named, both have to fit.
        reason: Why it is harmless.
        evidence: Ids or URIs of answers that show it (``TRACE#rank=0&seq=7``).
        created: When it was added, ISO 8601 in UTC; may be empty.
        author: Who added it; may be empty.
    """

    id: str
    operator: str
    slot: str
    reference: Site | None
    suspect: Site | None
    reason: str
    evidence: tuple[str, ...]
    created: str = ""
    author: str = ""

    def matches(self, places: tuple[Place | None, Place | None], operators: tuple[str, str], slot: str) -> bool:
        """True if it names this slot of this boundary.

        Args:
            places: Place of the boundary on each side, None where that side has nothing.
            operators: Operator on each side, empty where that side has nothing.
            slot: Slot that differs.
        """
        if slot != self.slot:
            return False
        wanted = fold_operator(self.operator)
        named = [(site, at) for at, site in enumerate((self.reference, self.suspect)) if site is not None]
        return bool(named) and all(site.is_at(places[at]) and fold_operator(operators[at]) == wanted for site, at in named)

    def names_same(self, other: Filter) -> bool:
        """True if both hide the same difference."""
        return name_of(self.operator, self.slot, self.reference, self.suspect) == name_of(
            other.operator, other.slot, other.reference, other.suspect
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain form, as in a filter file."""
        return {**asdict(self), "evidence": list(self.evidence)}


def name_of(operator: str, slot: str, reference: Site | None, suspect: Site | None) -> str:
    """The id of a filter that was given none: the same for every filter that hides the same difference."""
    sites = [None if site is None else (site.file, site.function, squash(site.text)) for site in (reference, suspect)]
    return f"filter-{sha256(repr((fold_operator(operator), slot, sites)).encode('utf-8', 'surrogatepass')).hexdigest()[:12]}"


def parse_filters(given: Iterable[Filter | Mapping[str, Any]]) -> list[Filter]:
    """Check filters and put them in the order of their ids, so that the order they come in means nothing.

    Args:
        given: Filters, or mappings with the keys of `Filter`; ``id``, ``created`` and ``author`` may be left out.

    Raises:
        FilterInvalid: One names more or less than one difference, lacks a reason or evidence, or two share an id.
    """
    found = [parse_filter(item.as_dict() if isinstance(item, Filter) else item) for item in given]
    ids = [rule.id for rule in found]
    twice = sorted({name for name in ids if ids.count(name) > 1})
    if twice:
        raise FilterInvalid(f"Two filters have the id {twice[0]!r}.", hint="Give each filter an id of its own, or remove one of them.")
    return sorted(found, key=lambda rule: rule.id)


def parse_filter(given: Mapping[str, Any]) -> Filter:
    """Check one filter.

    Raises:
        FilterInvalid: It names more or less than one difference, or lacks a reason or evidence.
    """
    if not isinstance(given, Mapping):
        raise FilterInvalid(f"A filter is an object, not {type(given).__name__}.")
    label = given.get("id") if isinstance(given.get("id"), str) and given.get("id") else "a new one"
    unknown = sorted(str(key) for key in given if key not in _KEYS)
    if unknown:
        raise FilterInvalid(f"Filter {label!r} has {unknown[0]!r}, which means nothing here. Known: {', '.join(sorted(_KEYS))}.")
    reference, suspect = (_site(given.get(side), side, label) for side in SIDES)
    operator, slot = (_text(given, key, label, 200) for key in ("operator", "slot"))
    if reference is None and suspect is None:
        raise FilterInvalid(
            f"Filter {label!r} names no place: it would hide {operator or 'every operator'} everywhere.",
            hint="Name file, function and text of the expression under `reference`, `suspect`, or both.",
        )
    for key, value, pattern in (("operator", operator, _OPERATOR), ("slot", slot, _SLOT)):
        if not pattern.fullmatch(value):
            raise FilterInvalid(f"Filter {label!r} needs one {key}; {value[:80]!r} is none.", hint="Take it from the answer's boundary.")
    reason = _text(given, "reason", label, MAX_REASON_CHARS).strip()
    if not reason:
        raise FilterInvalid(f"Filter {label!r} gives no reason.", hint="Say in a sentence why this difference is harmless.")
    name = given.get("id") or name_of(operator, slot, reference, suspect)
    if not isinstance(name, str) or not _ID.fullmatch(name):
        raise FilterInvalid(f"{str(name)[:80]!r} is no id for a filter.", hint="Use up to 64 letters, digits, dots and dashes.")
    created, author = _text(given, "created", label, 40), _text(given, "author", label, MAX_AUTHOR_CHARS)
    return Filter(name, operator, slot, reference, suspect, reason, _evidence(given.get("evidence"), label), created, author)


def _site(given: Any, side: str, label: object) -> Site | None:
    if given is None:
        return None
    if isinstance(given, Site):
        given = asdict(given)
    good = isinstance(given, Mapping) and given.keys() <= _SITE_KEYS
    if not good or not all(isinstance(given.get(key), str) and squash(given[key]) for key in _SITE_KEYS):
        raise FilterInvalid(
            f"Filter {label!r} does not name one place on the {side}: a file, an operator or a function alone is too wide.",
            hint="Give file, function and text (the expression), all three, as in the answer's boundary.",
        )
    long = next((key for key in sorted(_SITE_KEYS) if len(given[key]) > MAX_TEXT_CHARS), None)
    if long:
        raise FilterInvalid(f"Filter {label!r}: {long} of the {side} is longer than {MAX_TEXT_CHARS} characters.")
    return Site(given["file"], given["function"], given["text"])


def _text(given: Mapping[str, Any], key: str, label: object, limit_chars: int) -> str:
    value = given.get(key, "")
    if not isinstance(value, str):
        raise FilterInvalid(f"Filter {label!r}: {key} is {type(value).__name__}, not text.")
    if len(value) > limit_chars:
        raise FilterInvalid(f"Filter {label!r}: {key} has {len(value)} characters, more than {limit_chars}.")
    return value


def _evidence(given: Any, label: object) -> tuple[str, ...]:
    items = given if isinstance(given, (list, tuple)) else []
    good = [item for item in items if isinstance(item, str) and len(item) <= MAX_TEXT_CHARS and _EVIDENCE.fullmatch(item)]
    if not items or len(good) != len(items) or len(items) > MAX_EVIDENCE:
        raise FilterInvalid(
            f"Filter {label!r} gives no evidence that can be looked up.",
            hint=f"Give a list of 1 to {MAX_EVIDENCE} ids or URIs from an answer, such as TRACE#rank=0&seq=7.",
        )
    return tuple(good)
