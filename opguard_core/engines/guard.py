"""The step guard: after the first event nothing of ours may reach the user's step as an exception."""

from __future__ import annotations

from opguard_core.engines.coverage import Coverage

DETAIL_CHARACTERS = 300


class Guard:
    """Turns our own failures into counted gaps."""

    def __init__(self, coverage: Coverage) -> None:
        self._coverage = coverage
        self.num_caught = 0

    def caught(self, where: str, error: BaseException, seq: int | None = None) -> str:
        """Count one failure of ours; returns the text that the GAP event carries.

        Args:
            where: What we were doing.
            error: What went wrong.
            seq: The event that was being made, None if none.
        """
        self.num_caught += 1
        detail = f"{where}: {type(error).__name__}: {error}"[:DETAIL_CHARACTERS]
        self._coverage.gap("internal-error", detail, touches_state=True, seq=seq)
        # A traceback would keep the frames, and so the tensors, of the user's step.
        error.__traceback__ = None
        return detail
