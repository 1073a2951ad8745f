"""What a step takes, said once to a person at a terminal while the program runs, where no plan said it before.

Read from the growing trace, in the launcher's own process: the program neither knows nor waits.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from opguard_core.plan.expected import Pace, measured

Over = Callable[[], Sequence[int] | None]
LOOK_S = 2.0
SHARE = 0.02  # of the time that passes, spent on looking


def said_at_terminal(run: Path, mode: str, steps: tuple[int, int] | None, say: Callable[[str], None], over: Over | None) -> Over | None:
    """What a launcher asks several times a second, with a look at the trace; as it was where nobody reads along.

    Args:
        run: The run folder.
        mode: Mode of the run.
        steps: Window of steps that is recorded, or None for all.
        say: Where to say it.
        over: What the launcher asks without it.

    Cost: at most `SHARE` of the time in this process, nothing once it was said, or where standard error is no terminal.
    """
    if not sys.stderr.isatty():
        return over
    watch = _Watch(run, mode, steps, say)

    def asked() -> Sequence[int] | None:
        watch.look(time.monotonic())
        return None if over is None else over()

    return asked


class _Watch:
    """Follows the ranks until a step's time shows."""

    def __init__(self, run: Path, mode: str, steps: tuple[int, int] | None, say: Callable[[str], None]) -> None:
        self._run, self._mode, self._steps, self._say = run, mode, steps, say
        self._planned = None if steps is None else steps[1] - steps[0]
        self._pace = Pace(self._planned)
        self._next_s = 0.0
        self._ranks: dict[Path, object] = {}
        self._over = False

    def look(self, now_s: float) -> None:
        """Look again if it is time to."""
        if self._over or now_s < self._next_s:
            return
        began = time.monotonic()
        done = self._done()
        self._pace.seen(now_s, done)
        if self._pace.is_long():
            self._over = True
            self._say(measured(self._mode, self._pace, done, self._planned))
        self._next_s = now_s + max(LOOK_S, (time.monotonic() - began) / SHARE)

    def _done(self) -> int:
        try:
            from opguard_core.trace.growth import GrowingRank
        except ImportError:  # the launcher's Python may lack what the training's has
            self._over = True
            return 0
        for folder in self._run.glob("rank-" + "[0-9]" * 5):
            if folder not in self._ranks:
                self._ranks[folder] = GrowingRank(folder, self._steps)
        return min((rank.look() for rank in self._ranks.values() if isinstance(rank, GrowingRank)), default=0)
