"""The drawing: a lane for each rank of each side, pairs joined by flows, what differs in a colour of its own, the pivot marked.

Pairs come from a fresh alignment of the stored traces, of the steps that are shown alone, and never from the stored answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opguard_core.errors import ConfigError
from opguard_core.ids import SIDES
from opguard_core.trace.files import write_atomic
from opguard_harness.access.rules import current
from opguard_harness.workspace.evidence import digest_of
from opguard_harness.workspace.stored import answer_of

if TYPE_CHECKING:
    from opguard_core.evidence.pairs import Pair
    from opguard_core.trace.reader import Run
    from opguard_harness.report.perfetto_file import PerfettoFile
    from opguard_harness.workspace.timeline.lanes import Lane

MOST_BOUNDARIES = 12_000
MOST_RANKS = 32
_AROUND_STEPS = 1
_FIRST_STEPS = 2
DIFFERS, SAME, UNKNOWN, ALONE, PIVOT = "differs", "same", "unknown", "only here", "pivot"
_WORDS = {"differ": DIFFERS, "same": SAME, "unknown": UNKNOWN}
_CLOCK = "Each side's lane begins at 0; a boundary is drawn until the next one of its thread begins."


@dataclass
class Drawn:
    """What a timeline shows.

    Attributes:
        steps: First step, and the one after the last.
        ranks: (reference rank, suspect rank) of the pairs shown.
        boundaries: How many are shown.
        total: How many there are in those steps.
        pairs: Flows between the sides.
        differing: Those of them whose results differ.
        pivot: Whether the pivot is in it.
        ranks_left_out: Rank pairs that did not fit.
        found: Steps that have a boundary in it.
    """

    steps: tuple[int, int]
    ranks: list[tuple[int, int]] = field(default_factory=list)
    boundaries: int = 0
    total: int = 0
    pairs: int = 0
    differing: int = 0
    pivot: bool = False
    ranks_left_out: int = 0
    found: set[int] = field(default_factory=set)


def write_timeline(comparison: str, out: Path, steps: tuple[int, int] | None = None) -> Drawn:
    """Draw a comparison into a file.

    Args:
        comparison: Its id or path.
        out: The file; replaced if it is there.
        steps: Steps to show, the last one excluded; None for those around the first difference.

    Raises:
        DependencyMissing: The package that writes such files is not installed.
        SideNotFound: There is no such comparison.
        TraceFormatError: A trace cannot be read.
        ConfigError: No rank of either side is in those steps.
    """
    path = current().path(out, "out")
    data, drawn = timeline(answer_of(comparison), steps)
    write_atomic(path, data)
    return drawn


def timeline(answer: Mapping[str, Any], steps: tuple[int, int] | None = None, most: int = MOST_BOUNDARIES) -> tuple[bytes, Drawn]:
    """A comparison as a Perfetto trace.

    Args:
        answer: A stored answer; its traces may be touched.
        steps: As `write_timeline`.
        most: Boundaries to show; what is around the pivot is kept.

    Cost: reads and aligns the windows of those steps; the file has some hundred bytes for a boundary.
    """
    from opguard_core.align.ranks import pair_ranks
    from opguard_core.trace.reader import Run
    from opguard_harness.report.perfetto_file import PerfettoFile

    file = PerfettoFile()  # first: without it nothing is to be read
    runs = Run.open(answer["trace"][SIDES[0]]), Run.open(answer["trace"][SIDES[1]])
    mapped = dict(answer["compared"].get("rank_map", []))
    pairs = list(pair_ranks(runs[0].ranks, runs[1].ranks, mapped or None).pairs)
    shown = steps or _default_steps(answer)
    spans = [span for a, b in pairs for trace in (runs[0].ranks[a], runs[1].ranks[b]) if (span := trace.window_span()) is not None]
    recorded = min((span[0] for span in spans), default=0), max((span[1] for span in spans), default=0) + 1
    shown = shown or (recorded[0], recorded[0] + _FIRST_STEPS)
    drawn = Drawn((max(shown[0], recorded[0] - 1), min(shown[1], recorded[1])))
    kept = sorted(sorted(pairs, key=lambda pair: pair[1] != (answer["pivot"] or {}).get("rank"))[:MOST_RANKS], key=lambda pair: pair[1])
    drawn.ranks_left_out = len(pairs) - len(kept)
    for at, ranks in enumerate(kept):
        _draw_ranks(file, answer, runs, ranks, at, max(1, most // (2 * len(kept))), drawn)
    if not drawn.boundaries:
        raise ConfigError(
            f"Neither side recorded a boundary in steps {shown[0]}:{shown[1]}.", hint="Name steps that were observed, as `--steps A:B`."
        )
    drawn.steps = min(drawn.found), max(drawn.found) + 1
    return file.data(), drawn


def _default_steps(answer: Mapping[str, Any]) -> tuple[int, int] | None:
    """The steps around the first difference; None of an answer without one."""
    for boundary in (answer["pivot"], *answer["candidates"]):
        if boundary is not None and isinstance(boundary.get("step"), int):
            return max(0, boundary["step"] - _AROUND_STEPS), boundary["step"] + _AROUND_STEPS + 1
    return None


def _draw_ranks(
    file: PerfettoFile, answer: Mapping[str, Any], runs: tuple[Run, Run], ranks: tuple[int, int], at: int, most: int, drawn: Drawn
) -> None:
    """Both lanes of a rank pair."""
    from opguard_core.align.timeline import Timeline
    from opguard_core.evidence.pairs import pairs_of
    from opguard_harness.workspace.timeline.lanes import lane

    traces = runs[0].ranks[ranks[0]], runs[1].ranks[ranks[1]]
    together = Timeline(*traces)
    pairs = [pair for window in range(drawn.steps[0], drawn.steps[1] + 1) for pair in pairs_of(together, window)]
    marked = _marked(answer, ranks[1])
    wanted = marked if any(seq is not None for seq in marked) else _first_differing(pairs)
    lanes = [
        lane(trace, rank, digest_of(Path(answer["trace"][side])), drawn.steps, seq, most)
        for side, trace, rank, seq in zip(SIDES, traces, ranks, wanted, strict=True)
    ]
    if not any(len(found.seqs) for found in lanes):
        return
    drawn.ranks.append(ranks)
    known = [set(found.seqs.tolist()) for found in lanes]
    joined = [pair for pair in pairs if pair.reference in known[0] and pair.suspect in known[1]]
    flows = {pair: drawn.pairs + number for number, pair in enumerate(joined, 1)}
    drawn.pairs += len(joined)
    drawn.differing += sum(pair.results.value == "differ" for pair in joined)
    partner = [{pair.reference: pair for pair in pairs}, {pair.suspect: pair for pair in pairs}]
    for side, found in enumerate(lanes):
        title = f"rank {ranks[side]} {SIDES[side]}"
        _draw_lane(file, found, title, 2 * at + side, partner[side], flows, (marked[side], _name(answer)), drawn)


def _marked(answer: Mapping[str, Any], rank: int) -> tuple[int | None, int | None]:
    """Event numbers of the pivot in a rank of the suspect, by side."""
    pivot = answer["pivot"]
    if pivot is None or pivot["rank"] != rank or not pivot.get("seq"):
        return None, None
    return pivot["seq"].get(SIDES[0]), pivot["seq"].get(SIDES[1])


def _first_differing(pairs: list[Pair]) -> tuple[int | None, int | None]:
    found = next((pair for pair in pairs if pair.results.value == "differ"), None)
    return (None, None) if found is None else (found.reference, found.suspect)


def _name(answer: Mapping[str, Any]) -> str:
    pivot = answer["pivot"]
    return "" if pivot is None else f"PIVOT {pivot['operator']} {pivot['slot']} ({pivot['origin']})"


def _draw_lane(
    file: PerfettoFile,
    found: Lane,
    title: str,
    place: int,
    partner: Mapping[int, Pair],
    flows: Mapping[Pair, int],
    pivot: tuple[int | None, str],
    drawn: Drawn,
) -> None:
    """One rank of one side: its steps and phases, and a track for each thread and stream."""
    from opguard_harness.workspace.timeline.lanes import clock
    from opguard_harness.workspace.timeline.phases import spans

    rows = found.rows()
    zero = min((row.t_host_ns for row in rows), default=0)
    rows = [row._replace(t_host_ns=row.t_host_ns - zero) for row in rows]
    drawn.boundaries += len(rows)
    drawn.total += found.total
    drawn.found.update(found.steps.tolist())
    lane = file.track(title, rank=place, text=_CLOCK)
    phases = file.track("steps and phases", parent=lane, rank=0)
    if len(rows) < found.total:
        cut = f"{len(rows)} of {found.total} boundaries of these steps are shown"
        file.instant(phases, cut, 0, categories=("truncated",))
    times = clock(rows)
    for span in spans(found.steps.tolist(), [row.phase for row in rows]):
        file.slice(phases, span.name, times[span.first][0], times[span.end - 1][1], categories=(("step", "phase", "phase")[span.depth],))
    tracks: dict[tuple[str, int, int | None], list[int]] = {}
    for index, row in enumerate(rows):
        tracks.setdefault((row.thread, row.thread_index, row.stream), []).append(index)
    for rank, (key, indices) in enumerate(tracks.items(), 1):
        track = file.track(_track_name(key, tracks.keys()), parent=lane, rank=rank)
        own = [rows[index] for index in indices]
        for index, row, (begin, end) in zip(indices, own, clock(own), strict=True):
            pair = partner.get(row.seq)
            results = ALONE if pair is None else _WORDS[pair.results.value]
            is_pivot = row.seq == pivot[0]
            file.slice(
                track,
                row.operator,
                begin,
                end,
                categories=((PIVOT,) if is_pivot else ()) + (results,),
                colour=PIVOT if is_pivot else results,
                flow=None if pair is None else flows.get(pair),
                arguments=found.arguments(index, row, results),
            )
            if is_pivot:
                drawn.pivot = True
                file.instant(track, pivot[1], begin, categories=(PIVOT,))


def _track_name(key: tuple[str, int, int | None], others: Any) -> str:
    """A thread by its role, numbered where several have it; and a stream."""
    thread, index, stream = key
    alike = {other[1] for other in others if other[0] == thread}
    name = thread if len(alike) == 1 else f"{thread} #{index}"
    return name if stream is None else f"{name}, stream {stream}"


__all__ = ["Drawn", "timeline", "write_timeline"]
