"""Digests of the slices of an array along one axis, so that slices can be found again elsewhere. Equal digests are checked by bytes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from opguard_core.evidence.damage.elements import CHUNK, Array
from opguard_core.fingerprint.constants import MASK64, POSITION
from opguard_core.fingerprint.numpy_twin import mix_lanes

Words = npt.NDArray[np.uint64]


def slice_digests(codes: Array, shape: tuple[int, ...], axis: int) -> Words:
    """One word for each index of an axis: a sum over mixed elements and their places within the slice.

    Args:
        codes: All components, row-major.
        shape: Lengths; the last one may be the parts of an element.
        axis: Which.

    Cost: about 10 ns a component; some 20 MiB.
    """
    length = shape[axis]
    inner = int(np.prod(shape[axis + 1 :], dtype=np.int64))
    found = np.zeros(length, dtype=np.uint64)
    places = np.arange(CHUNK, dtype=np.int64)
    for start in range(0, codes.size, CHUNK):
        part = codes[start : start + CHUNK]
        at = places[: part.size] + start
        row, within = at // inner, at % inner
        index = row % length
        place = ((row // length) * inner + within + 1).astype(np.uint64)
        words = mix_lanes(part.astype(np.uint64) + place * np.uint64(POSITION & MASK64))
        begins = np.flatnonzero(np.diff(row, prepend=row[0] - 1))
        np.add.at(found, index[begins], np.add.reduceat(words, begins))
    return found


def equal_slices(reference: Array, suspect: Array, shape: tuple[int, ...], axis: int, mapping: npt.NDArray[np.int64]) -> bool:
    """Whether index ``i`` of the suspect holds what ``mapping[i]`` of the reference holds, byte for byte."""
    length, inner = shape[axis], int(np.prod(shape[axis + 1 :], dtype=np.int64))
    left, right = reference.reshape(-1, length, inner), suspect.reshape(-1, length, inner)
    many = max(1, CHUNK // max(1, inner))
    for outer in range(left.shape[0]):
        for start in range(0, length, many):
            if not np.array_equal(left[outer][mapping[start : start + many]], right[outer][start : start + many]):
                return False
    return True
