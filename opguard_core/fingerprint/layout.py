"""Shape and strides to the shortest equivalent walk in logical (row-major) order; shared by the CPU twins."""

from __future__ import annotations


def merge_dimensions(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Drop dimensions of length one and join neighbours that are dense in one another.

    Args:
        shape: Lengths, outermost first; none may be zero.
        strides: Same length, in any unit.

    Returns:
        Shape and strides that visit the same places in the same order; both empty for a single element.
    """
    lengths: list[int] = []
    steps: list[int] = []
    for length, step in zip(shape, strides, strict=True):
        if length == 1:
            continue
        if lengths and steps[-1] == step * length:
            lengths[-1] *= length
            steps[-1] = step
        else:
            lengths.append(length)
            steps.append(step)
    return tuple(lengths), tuple(steps)
