"""Keep the wire of a stdio server for messages alone; imports nothing that could print."""

from __future__ import annotations

import os
import sys


def take_wire() -> tuple[int, int]:
    """Move standard input and output to descriptors of our own, which no child inherits.

    A print in a tool, or in a program that a tool starts, then ends up on standard error and never between two messages.

    Returns:
        Where messages come in and where they go out.
    """
    sys.stdout = sys.stderr
    incoming, outgoing = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    os.close(nothing)
    return incoming, outgoing
