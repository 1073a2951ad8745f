"""Places of generated code: a kernel was made from several lines of the program, and the one that differs is the one to open.

A trace tells these lines as frames below the one of the generated file, in the order of the graph, so that the last would pass for the
place of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher

from opguard_core.trace.schema import FrameRow

OPERATORS = "inductor."  # operators of this prefix are generated kernels
GENERATED = "inductor/"  # files of generated code begin so, see `engines.inductor.watch`
NO_FILE = "<"  # names of texts that are no file begin so: what torch writes for a graph follows from the program


def lines_made_from(frames: Sequence[FrameRow]) -> list[FrameRow]:
    """The program's lines that the launch of a stack was made from; none for other code.

    Args:
        frames: Of the stack, outermost first.
    """
    at = next((index for index in range(len(frames) - 1, -1, -1) if frames[index].file.startswith(GENERATED)), None)
    return [] if at is None else [frame for frame in frames[at + 1 :] if frame.category == "user"]


def differing(reference: Sequence[FrameRow], suspect: Sequence[FrameRow]) -> tuple[FrameRow | None, FrameRow | None]:
    """The first line of each side that the other side does not have so; None where that side lacks nothing.

    A line of a file that both sides ran with the same text is in both programs: that only one side's kernel tells of it comes from how
    that was fused, or from a compiler's cache that no longer says. Where nothing else differs, both sides get the first line they share.

    Args:
        reference: From `lines_made_from`.
        suspect: The same of the suspect.
    """
    sides = (reference, suspect)
    texts = [[(frame.function, frame.text) for frame in side] for side in sides]
    if texts[0] == texts[1]:
        return None, None
    blocks = SequenceMatcher(None, texts[0], texts[1], autojunk=False).get_opcodes()
    pairs = [(reference[low + k], suspect[first + k]) for word, low, high, first, _ in blocks if word == "equal" for k in range(high - low)]
    files = [{(frame.file, frame.source) for frame in side if frame.source} for side in sides]
    if any(left.line != right.line for left, right in pairs if (left.file, left.source) == (right.file, right.source)):
        files = [set(), set()]  # two functions of one file
    found: list[tuple[FrameRow | None, FrameRow | None]] = []
    for word, low, high, first, last in blocks:
        if word == "equal":
            continue
        lefts = [frame for frame in reference[low:high] if (frame.file, frame.source) not in files[1]]
        rights = [frame for frame in suspect[first:last] if (frame.file, frame.source) not in files[0]]
        # One side may tell of more lines than the other, from a cache: what both have in one function is the same line, changed.
        both = ((left, right) for left in lefts for right in rights if left.function == right.function)
        pair = next(both, (next(iter(lefts), None), next(iter(rights), None)))
        if pair != (None, None):
            found.append(pair)
    changed = next((pair for pair in found if None not in pair), None)
    return changed or next(iter(found), None) or (pairs[0] if pairs else (None, None))
