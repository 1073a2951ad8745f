"""Windows and alignments of hand-written scripts."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from opguard_core.align.aligned import Aligned
from opguard_core.align.columns import Window
from opguard_core.align.loading import RankColumns
from opguard_core.align.timeline import Timeline
from opguard_core.align.vocabulary import Vocabulary
from tests.support.script import Script

Write = Callable[[Script], object]


@pytest.fixture
def windows() -> Callable[[Write], list[Window]]:
    """All windows of one script."""

    def make(write: Write) -> list[Window]:
        script = Script()
        write(script)
        return [window for _, window in RankColumns(script.close().ranks[0], Vocabulary()).iter_windows()]

    return make


@pytest.fixture
def window(windows: Callable[[Write], list[Window]]) -> Callable[[Write], Window]:
    """The first window of one script."""
    return lambda write: windows(write)[0]


@pytest.fixture
def timeline() -> Callable[[Write, Write], Timeline]:
    """Both sides of two scripts, not read yet."""

    def make(reference: Write, suspect: Write) -> Timeline:
        traces = []
        for write in (reference, suspect):
            script = Script()
            write(script)
            traces.append(script.close().ranks[0])
        return Timeline(*traces)

    return make


@pytest.fixture
def aligned(timeline: Callable[[Write, Write], Timeline]) -> Callable[[Write, Write], Aligned]:
    """The first window of two scripts, aligned."""

    def make(reference: Write, suspect: Write) -> Aligned:
        found = next(iter(timeline(reference, suspect).steps())).aligned
        assert found is not None
        return found

    return make
