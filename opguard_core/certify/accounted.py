"""What only one side keeps, and the other side computed all the same: a copied module here, a dictionary of weights there."""

from __future__ import annotations

from opguard_core.align.timeline import Row
from opguard_core.certify.log_reads import is_copy_of_shared
from opguard_core.certify.standing import Rows, Standing


class Accounted:
    """Says of what one side keeps whether the other side made the same values; each writer is looked up once.

    Args:
        rows: Look-ups over the rank pair.
    """

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._decided: dict[Row, bool] = {}

    def kept(self, row: Row) -> bool:
        """Every byte of a row was written by an operator whose partner wrote the same, or copied from such a value.

        Memory that nothing observed wrote is not accounted for: the other side cannot be shown to have it.
        """
        writers, unwritten = self._rows.timeline.producers(row)
        return bool(writers) and not unwritten and all(self.made(writer) for writer in writers)

    def made(self, writer: Row) -> bool:
        """The other side made what a written row holds."""
        if writer not in self._decided:
            same = self._rows.standing(writer) is Standing.SAME
            self._decided[writer] = same or is_copy_of_shared(self._rows, writer)
        return self._decided[writer]
