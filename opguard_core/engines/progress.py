"""How far the training is: completed updates, micro-batches, collectives; what is recorded of it."""

from __future__ import annotations


class Progress:
    """Counters of one rank.

    Attributes:
        completed: Optimizer updates done by the counting optimizer, without the offset.
        offset: Updates done before this run began (a resumed run).
        collectives: Collectives this rank had begun.
        window: ``completed + offset``.
        recording: Whether operators are recorded in this window.
        loaded: An optimizer's state was loaded before the first update.
    """

    __slots__ = ("_steps", "collectives", "completed", "loaded", "offset", "offset_given", "recording", "window")

    def __init__(self, steps: tuple[int, int] | None, offset: int | None) -> None:
        self._steps = steps
        self.completed = 0
        self.offset = offset or 0
        self.offset_given = offset is not None
        self.collectives = 0
        self.loaded = False
        self._settle()

    def _settle(self) -> None:
        self.window = self.completed + self.offset
        self.recording = self._steps is None or self._steps[0] <= self.window < self._steps[1]

    def update_done(self) -> None:
        """One counted update has ended."""
        self.completed += 1
        self._settle()

    def resumed_at(self, steps: int) -> bool:
        """Take the optimizer's own step count as the offset; only before the first update, and only if none was given."""
        if self.completed or self.offset_given or steps <= 0:
            return False
        self.offset = steps
        self._settle()
        return True

    @property
    def start(self) -> str:
        """Where the count of steps begins: "begin", "given", "state" (an optimizer's own), "unknown" (resumed, and nothing tells)."""
        if self.offset_given:
            return "given"
        return "state" if self.offset else "unknown" if self.loaded else "begin"

    @property
    def wants_state(self) -> bool:
        """Whether the state at the end of this window is recorded: in the window, and once just before it."""
        return self._steps is None or self._steps[0] - 1 <= self.window < self._steps[1]
