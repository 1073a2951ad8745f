"""Which settings can be behind a first difference of some origin: a table of key patterns. Pure."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable
from typing import Any

from opguard_core.contract.spec import SEVERITIES
from opguard_core.ids import Origin

_DRAWS = ("seed.*", "loader.*.sampler*", "loader.*.generator", "loader.*.shuffle", "loader.*.num_workers", "loader.*.exists")
_ROWS = ("loader.*", "seed.*")
_LOADED = ("load.*", "checkpoint.*.digest", "checkpoint.*.exists")
_PRECISION = ("dtype.*", "autocast.*", "forward.autocast", "forward.default_dtype", "flags.default_dtype")
FITTING = {
    Origin.RANDOM_STATE: (*_DRAWS, "env.PYTHONHASHSEED"),
    Origin.INPUT_DATA: _ROWS,
    Origin.INITIAL_STATE: (*_LOADED, "seed.*"),
    Origin.UNOBSERVED_PRODUCER: (*_LOADED, *_ROWS),
    Origin.ARGUMENT: (*_LOADED, "loader.*", "run.argv"),
    Origin.DTYPE: _PRECISION,
    Origin.STRUCTURE: (*_PRECISION, *_LOADED, "loader.*", "run.argv"),
}
_RESTATED = ("load.*.digest", "load.*.tensors", "checkpoint.*.digest")
"""Facts that say less than the names of the tensors behind them."""


def fitting(contract: Iterable[dict[str, Any]], origin: str) -> list[dict[str, Any]]:
    """Settings that differ and can be behind a difference, those made for its origin first; never what differs in any two runs.

    Args:
        contract: The ``contract`` list of an answer.
        origin: Of its pivot.
    """
    patterns = FITTING.get(Origin(origin), ())
    told = [item for item in contract if item["severity"] != "cosmetic" and not _is_lone(item)]
    named = [item for item in told if _fits(item["key"], patterns)]
    rest = [item for item in told if item["severity"] in ("arithmetic", "order") and item not in named]
    return [*sorted(named, key=_rank), *rest]


def _rank(item: dict[str, Any]) -> tuple[bool, int, bool]:
    """What says most comes first: plain values before lists of names."""
    return _fits(item["key"], _RESTATED), SEVERITIES.index(item["severity"]), isinstance(item["reference"], list)


def _is_lone(item: dict[str, Any]) -> bool:
    """Whether it is one of many facts of something that one side alone made, as older answers list it."""
    lone = item["reference"] is None or item["suspect"] is None
    return lone and item["key"].startswith(("loader.", "load.", "checkpoint.")) and not item["key"].endswith(".exists")


def _fits(key: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(key, pattern) for pattern in patterns)
