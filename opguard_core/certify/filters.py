"""Benign filters: differences someone declared harmless, at a place and slot, with a reason and a count of hits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from opguard_core.align.vocabulary import fold_operator, squash
from opguard_core.certify.verdict import Place
from opguard_core.errors import ConfigError

MAX_SHARE = 0.05
"""Share of all pairs that filters may swallow before the verdict becomes inconclusive."""


@dataclass
class Filter:
    """One declared benign difference; empty fields match everything, but a place or an operator must be given.

    Attributes:
        id: Stable name, for the hit count.
        file: File of the place, as in PLACE.
        function: Function of the place.
        text: Expression of the place, white space ignored.
        operator: Operator, overload and in-place underscore ignored.
        slot: Slot that differs (``out.1``).
        reason: Why it is harmless.
        hits: Pairs it swallowed.
    """

    id: str
    file: str = ""
    function: str = ""
    text: str = ""
    operator: str = ""
    slot: str = ""
    reason: str = ""
    hits: int = 0

    def matches(self, places: Iterable[Place | None], operators: Iterable[str], slot: str) -> bool:
        """True if a difference at one of the places (either side) is meant."""
        if self.slot and self.slot != slot:
            return False
        if self.operator and fold_operator(self.operator) not in map(fold_operator, operators):
            return False
        if not (self.file or self.function or self.text):
            return True
        return any(place is not None and self._is_at(place) for place in places)

    def _is_at(self, place: Place) -> bool:
        wanted = squash(self.text)
        return (
            (not self.file or self.file == place.file)
            and (not self.function or self.function == place.function)
            and (not wanted or wanted == squash(place.text))
        )


def parse_filters(given: Iterable[Filter | Mapping[str, Any]]) -> list[Filter]:
    """Check and copy filters.

    Args:
        given: Filters, or mappings with the keys of `Filter` (``site`` may hold file, function and text).

    Raises:
        ConfigError: A filter names nothing, or has a key or value that means nothing.
    """
    return [_parse(item) for item in given]


def _parse(item: Filter | Mapping[str, Any]) -> Filter:
    values = dict(vars(item)) if isinstance(item, Filter) else dict(item)
    values.pop("hits", None)
    site = values.pop("site", None)
    if isinstance(site, Mapping):
        values = {**site, **values}
    allowed = {"id", "file", "function", "text", "operator", "slot", "reason"}
    bad = sorted(key for key, value in values.items() if key not in allowed or not isinstance(value, str))
    if bad or not values.get("id"):
        raise ConfigError(
            f"Filter {values.get('id')!r} is not understood: {', '.join(bad) or 'no id'}.",
            hint=f"A filter has an id and texts for some of {', '.join(sorted(allowed - {'id'}))}.",
        )
    if not any(values.get(key) for key in ("file", "function", "text", "operator")):
        raise ConfigError(f"Filter {values['id']!r} matches everything.", hint="Name a file, a function, an expression or an operator.")
    return Filter(**values)
