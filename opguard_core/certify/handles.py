"""Numbers that a program hands to an extension and that may be the address of something: a kernel, a stream, a library's handle.

Such a number is another in each process and says nothing. On a 64-bit machine most addresses are so high that capture writes "address"
for them; those of the memory that a program's own break gives out can be as low as a count of elements.
"""

from __future__ import annotations

import re

from opguard_core.align.columns import Window

_LOWEST = 1 << 22  # where the text of a program that is not position independent begins; what it allocates lies behind
_ALIGNED = 16  # as malloc does
_OPERATORS = ("extension.", "cupy.")
_NUMBER = re.compile(r"\d{7,15}")


def arguments_differ(reference: Window, suspect: Window, left: int, right: int) -> bool:
    """Whether two paired calls have other arguments; those of an extension, in more than numbers that may be addresses.

    Args:
        reference: Window of the first.
        suspect: Window of the second.
        left: The first call.
        right: The second.
    """
    if reference.args[left] == suspect.args[right]:
        return False
    if not reference.operator_text(left).startswith(_OPERATORS):
        return True
    mine, other = (window.text(int(window.args[event])).split(";") for window, event in ((reference, left), (suspect, right)))
    if len(mine) != len(other):
        return True
    changed = [pair for pair in zip(mine, other, strict=True) if pair[0] != pair[1]]
    return not all(_name(one) == _name(two) and _possible(one) and _possible(two) for one, two in changed)


def _name(argument: str) -> str:
    return argument.partition("=")[0]


def _possible(argument: str) -> bool:
    """Whether an argument is a number that memory of the program may have as its address."""
    value = argument.partition("=")[2]
    return value == "address" or (_NUMBER.fullmatch(value) is not None and int(value) >= _LOWEST and int(value) % _ALIGNED == 0)
