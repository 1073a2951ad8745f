"""Which rank of the reference stands for which rank of the suspect: the same number, or an explicit map."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from opguard_core.errors import ConfigError


@dataclass(frozen=True)
class RankPairs:
    """Ranks to compare.

    Attributes:
        pairs: (reference rank, suspect rank), rising by suspect rank.
        reference_only: Ranks of the reference without a partner.
        suspect_only: Ranks of the suspect without a partner.
    """

    pairs: tuple[tuple[int, int], ...]
    reference_only: tuple[int, ...]
    suspect_only: tuple[int, ...]


def pair_ranks(reference: Iterable[int], suspect: Iterable[int], rank_map: Mapping[int, int] | None = None) -> RankPairs:
    """Pair ranks.

    Args:
        reference: Ranks the reference has.
        suspect: Ranks the suspect has.
        rank_map: Suspect rank by reference rank; ranks it does not name are left out. None pairs equal numbers.

    Raises:
        ConfigError: The map names a rank that does not exist, or one suspect rank twice.
    """
    left, right = set(reference), set(suspect)
    if rank_map is None:
        pairs = [(rank, rank) for rank in left & right]
    else:
        unknown = sorted(set(rank_map) - left) + sorted(set(rank_map.values()) - right)
        if unknown:
            raise ConfigError(
                f"The rank map names ranks that left no trace: {unknown}.",
                hint=f"Ranks are {sorted(left)} in the reference, {sorted(right)} in the suspect.",
            )
        if len(set(rank_map.values())) < len(rank_map):
            raise ConfigError("The rank map gives one suspect rank to two reference ranks.", hint="Map ranks one to one.")
        pairs = list(rank_map.items())
    pairs.sort(key=lambda pair: pair[1])
    return RankPairs(tuple(pairs), tuple(sorted(left - {a for a, _ in pairs})), tuple(sorted(right - {b for _, b in pairs})))
