"""Variants of the aligner with one idea taken away, for the ablations only."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from opguard_core.align import aligned, timeline
from opguard_core.align.columns import METADATA, MUT, STATE, Window, combined
from opguard_core.align.content import join
from opguard_core.align.dataflow import Dataflow
from opguard_core.align.features import Features
from opguard_core.align.loading import RankColumns
from opguard_core.align.pairing import STRUCTURE, Pairing
from opguard_core.align.vocabulary import Vocabulary
from opguard_core.certify import judge
from opguard_core.certify.matters import Matters, Sink, Spread
from opguard_core.certify.root import RootWalk
from opguard_core.certify.roots import Node, Root
from opguard_core.ids import Origin
from opguard_core.trace.reader import Run
from opguard_core.trace.window import WindowTable

NUM_SITES = 40

Change = Callable[[Window, WindowTable], Window]


@dataclass(frozen=True)
class Variant:
    """One idea taken away.

    Attributes:
        name: What is taken away.
        patches: For a pair of traces, the replacements to make: (owner, attribute, value).
    """

    name: str
    patches: Callable[[Path, Path], list[tuple[Any, str, Any]]]

    @contextlib.contextmanager
    def applied(self, reference: Path, suspect: Path) -> Iterator[None]:
        """Take it away for the time of one comparison."""
        with contextlib.ExitStack() as stack:
            for owner, name, value in self.patches(reference, suspect):
                stack.enter_context(mock.patch.object(owner, name, value))
            yield


def _columns(change: Change) -> tuple[Any, str, Any]:
    """Windows are changed as they are loaded."""

    class Changed(RankColumns):
        def _whole(self, table: WindowTable) -> Window:
            return change(super()._whole(table), table)

    return timeline, "RankColumns", Changed


def _xor32(window: Window, table: WindowTable) -> Window:
    word = table.slots["xor32"].astype(np.uint64)
    return replace(window, mix=word, value=word, bag=word)


def _no_mutated(window: Window, table: WindowTable) -> Window:
    del table
    return replace(window, status=np.where(window.direction == MUT, METADATA, window.status).astype(window.status.dtype))


def _thinned(reference: Path, suspect: Path) -> list[tuple[Any, str, Any]]:
    """Digests at `NUM_SITES` operator sites, evenly spread over those both sides have; elsewhere shapes and dataflow only.

    The state at the end of a step stays: no site is needed for it.
    """
    seen = [_sites(path) for path in (reference, suspect)]
    common = [site for site in seen[0] if site in seen[1]]
    at = np.unique(np.linspace(0, len(common) - 1, min(NUM_SITES, len(common))).astype(int)) if common else []
    kept = {common[index] for index in at}

    def change(window: Window, table: WindowTable) -> Window:
        del table
        texts = window.vocabulary.texts
        pairs = zip(window.op.tolist(), window.site.tolist(), strict=True)
        probed = np.array([(texts[op], texts[site]) in kept for op, site in pairs], bool) | (window.kind == STATE)
        return replace(window, status=np.where(probed[window.event], window.status, METADATA).astype(window.status.dtype))

    return [_columns(change)]


def _sites(path: Path) -> dict[tuple[str, str], None]:
    """Operator and place of every event of a run, in order of first use."""
    found: dict[tuple[str, str], None] = {}
    for trace in Run.open(path).ranks.values():
        vocabulary = Vocabulary()
        for _, window in RankColumns(trace, vocabulary).iter_windows():
            operators = zip(window.op[window.comparable].tolist(), window.site[window.comparable].tolist(), strict=True)
            found.update(dict.fromkeys((vocabulary.texts[op], vocabulary.texts[site]) for op, site in operators))
    return found


def _by_site(reference: Window, suspect: Window) -> aligned.Aligned:
    """The k-th event at a place is the k-th event at that place."""
    pairing = Pairing(Features(reference), Features(suspect))
    keys = []
    for window in (reference, suspect):
        key = combined(window.op, window.site, window.library_site, window.phase, window.microbatch)
        order = np.argsort(key, kind="stable")
        occurrence = np.zeros(len(key), np.int64)
        occurrence[order] = np.arange(len(key)) - np.searchsorted(key[order], key[order])
        keys.append(combined(key, occurrence))
    left, right = pairing.free_left(), pairing.free_right()
    a, b = join(keys[0][left], keys[1][right], left, right)
    pairing.add(left[a], right[b], STRUCTURE)
    features = pairing.reference, pairing.suspect
    return aligned.Aligned(
        Dataflow(reference), Dataflow(suspect), pairing.left, pairing.right, pairing.how, aligned._confidence(pairing), 0, features
    )


def _nothing(*_: Any) -> None:
    return None


def _always(self: Matters, left: int, **_: Any) -> Spread:
    del self
    return Spread(sink=Sink("write", left, -1))


def _itself(self: RootWalk, node: Node) -> list[Root]:
    return [Root(node, str(Origin.OPERATOR), self.output_slot(node))]


VARIANTS = (
    Variant(f"probes beyond {NUM_SITES} sites", _thinned),
    Variant("the digest: xor32 only", lambda *_: [_columns(_xor32)]),
    Variant("all but site keys", lambda *_: [(aligned, "_align", _by_site)]),
    Variant("the content level", lambda *_: [(aligned, name, _nothing) for name in ("join_content", "pair_exact", "pair_leftovers")]),
    Variant("mutated arguments", lambda *_: [_columns(_no_mutated)]),
    Variant("does it matter", lambda *_: [(judge.Matters, "spread", _always)]),
    Variant("the walk to the root", lambda *_: [(RootWalk, "from_pair", _itself)]),
)
