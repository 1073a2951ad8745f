"""What a command hands to the edge."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Outcome:
    """What to print and what the exit code is to say.

    Attributes:
        text: Standard output, without the final newline; empty prints nothing.
        verdict: The verdict that the exit code is to say; None for commands that give none.
        failed: The command did its work and what it found is a failure (a machine that is not ready): exit code 2.
    """

    text: str
    verdict: str | None = None
    failed: bool = False
