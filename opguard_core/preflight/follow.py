"""The sites of a plan, looked for in a run: found, moved (with a score), missing, and what the run has besides.

Exact names first; then names that a refactoring could have made of each other, best score first. Executions are counted:
a site of which a run has too few is missing, with how many there were.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field

from opguard_core.align.loading import RankColumns
from opguard_core.align.vocabulary import Vocabulary
from opguard_core.plan.document import Plan, PlanSite, SiteKey
from opguard_core.preflight.similar import ENOUGH, likeness
from opguard_core.preflight.sites import SiteReader, SiteTable, Spot, Tally, ends_step, from_the_start
from opguard_core.trace.reader import RankTrace, Run

LEAST_WINDOWS = 4
"""Steps of a run that are looked at, its first ones; as many as the preflight looked at, if those were more."""

MAX_CELLS = 1_000_000
"""Pairs of names compared at most in one group of candidates."""


@dataclass(frozen=True)
class Moved:
    """A site that a run has under another name. ``score``: 0.5 to 1; ``spot``: where in the run."""

    site: PlanSite
    now: SiteKey
    spot: Spot
    score: float


@dataclass(frozen=True)
class Missing:
    """A site of which a run has fewer executions than planned, in a step or in the first one."""

    site: PlanSite
    wanted: int
    found: int


@dataclass(frozen=True)
class Extra:
    """A site of a run that no site of the plan accounts for; ``count``: executions in a step, or in the first one."""

    key: SiteKey
    spot: Spot
    count: int


@dataclass(frozen=True)
class Followed:
    """What became of a plan's sites in one run.

    Attributes:
        sites: Sites that could be looked for; those of the set-up are left out where a run records later steps only.
        found: How many have all their executions under the planned name.
        moved: Those that have them under another name, least sure first.
        missing: Those that lack some.
        extra: What the run has besides, most frequent first.
        windows: Steps looked at.
    """

    sites: int
    found: int
    moved: tuple[Moved, ...]
    missing: tuple[Missing, ...]
    extra: tuple[Extra, ...]
    windows: tuple[int, ...]

    @property
    def share(self) -> float:
        """Share of the sites that were found or have moved; 1 for a plan without sites."""
        return 1.0 - len(self.missing) / self.sites if self.sites else 1.0


def follow(plan: Plan, run: Run) -> Followed:
    """Look for a plan's sites in the first steps of a run.

    Raises:
        TraceFormatError: The trace holds what no trace may hold.

    Cost: reads the run's first steps (see `LEAST_WINDOWS`) of every rank; the search is linear where names are unchanged.
    """
    table = SiteTable()
    tally: Tally[int] = Tally()
    windows: set[int] = set()
    starts = from_the_start(run)
    looked = plan.about.get("steps_looked_at")
    most = max(LEAST_WINDOWS, looked) if isinstance(looked, int) else LEAST_WINDOWS
    for trace in run.ranks.values():
        counts = dict(_counted(trace, table, most))
        windows |= counts.keys()
        tally.add_rank([counts[number] for number in sorted(counts)], starts=starts)
    if windows and not tally.every:  # a single step: what is done in every step cannot be told from the set-up
        tally.every, tally.first = tally.first, Counter()
        sites = [(site, site.every + site.first, 0) for site in plan.sites]
    else:
        sites = [(site, site.every, site.first) for site in plan.sites if site.every or starts]
    searches = (_Search(table, tally.every), _Search(table, tally.first))
    for at, (site, every, first) in enumerate(sites):
        for search, wanted in zip(searches, (every, first if starts else 0), strict=True):
            search.take(at, site, wanted)
    for search in searches:
        search.find_moved([site for site, _, _ in sites])
    return _outcome([site for site, _, _ in sites], searches, table, tuple(sorted(windows)))


def _counted(trace: RankTrace, table: SiteTable, most: int) -> Iterator[tuple[int, Counter[int]]]:
    """Counts of a rank's first complete steps; of the first window if no step is complete."""
    columns = RankColumns(trace, Vocabulary())
    reader = SiteReader(columns, table)
    taken = 0
    unfinished: tuple[int, Counter[int]] | None = None
    for raw, window in columns.iter_windows():
        ends = ends_step(window)
        if ends or (not taken and unfinished is None):
            numbers = reader.numbers(window)
            counter = Counter(numbers[numbers >= 0].tolist())
            if ends:
                taken += 1
                yield raw.window, counter
            else:
                unfinished = (raw.window, counter)
        if taken == most:
            return
    if not taken and unfinished is not None:
        yield unfinished


@dataclass
class _Search:
    """One kind of count (of every step, or of the first one): what is wanted and what there is.

    Attributes:
        table: Names of the run's sites.
        pool: Executions of each that nothing has taken yet.
        wanted: Executions still looked for, by position of the plan's site.
        asked: All executions planned, by position.
        moves: Where and how surely executions were found under another name, by position.
    """

    table: SiteTable
    pool: Counter[int]
    wanted: Counter[int] = field(default_factory=Counter)
    asked: Counter[int] = field(default_factory=Counter)
    moves: dict[int, tuple[float, int]] = field(default_factory=dict)

    def take(self, at: int, site: PlanSite, wanted: int) -> None:
        """Take what bears one of the site's two names."""
        self.asked[at] = wanted
        for key in (site.key, site.other):
            number = None if key is None else self.table.find(key)
            if number is not None:
                had = min(wanted, self.pool[number])
                self.pool[number] -= had
                wanted -= had
        if wanted:
            self.wanted[at] = wanted

    def find_moved(self, sites: list[PlanSite]) -> None:
        """Match what is left by likeness, in ever larger groups of candidates."""
        for group in _GROUPS:
            rooms: dict[Hashable, tuple[list[tuple[int, SiteKey]], list[int]]] = defaultdict(lambda: ([], []))
            for at in self.wanted:
                for key in (sites[at].key, sites[at].other):
                    if key is not None:
                        rooms[group(key)][0].append((at, key))
            for number in [number for number, count in self.pool.items() if count]:
                room = rooms.get(group(self.table.keys[number]))
                if room is not None:
                    room[1].append(number)
            for asking, having in rooms.values():
                if having and len(asking) * len(having) <= MAX_CELLS:
                    self._match(asking, having)

    def _match(self, asking: list[tuple[int, SiteKey]], having: list[int]) -> None:
        scored = [
            (-score, at, number) for at, key in asking for number in having if (score := likeness(key, self.table.keys[number])) >= ENOUGH
        ]
        for lost, at, number in sorted(scored):
            had = min(self.wanted[at], self.pool[number])
            if had:
                self.pool[number] -= had
                self.wanted[at] -= had
                if at not in self.moves or self.moves[at][0] > -lost:
                    self.moves[at] = (-lost, number)
                if not self.wanted[at]:
                    del self.wanted[at]


# From the closest relatives to all boundaries of one operator: small groups first keep the search linear.
_GROUPS: tuple[Callable[[SiteKey], Hashable], ...] = (
    lambda key: (key.operator, key.phase, key.module, key.tensors),
    lambda key: (key.operator, key.phase, key.tensors),
    lambda key: (key.operator, key.phase, key.module),
    lambda key: (key.operator, key.tensors),
    lambda key: key.operator,
)


def _outcome(sites: list[PlanSite], searches: tuple[_Search, _Search], table: SiteTable, windows: tuple[int, ...]) -> Followed:
    moved, missing = [], []
    for at, site in enumerate(sites):
        lacking = sum(search.wanted[at] for search in searches)
        moves = [search.moves[at] for search in searches if at in search.moves]
        if lacking:
            asked = sum(search.asked[at] for search in searches)
            missing.append(Missing(site, asked, asked - lacking))
        elif moves:
            score, number = min(moves)
            moved.append(Moved(site, table.keys[number], table.spots[number], score))
    left = searches[0].pool | searches[1].pool
    extra = [Extra(table.keys[number], table.spots[number], count) for number, count in left.items() if count]
    return Followed(
        len(sites),
        len(sites) - len(moved) - len(missing),
        tuple(sorted(moved, key=lambda one: (one.score, one.site.key))),
        tuple(sorted(missing, key=lambda one: (one.found - one.wanted, one.site.key))),
        tuple(sorted(extra, key=lambda one: (-one.count, one.key))),
        windows,
    )
