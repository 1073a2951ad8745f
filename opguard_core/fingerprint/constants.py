"""The constants of ``spec.md`` section 2, for the Python implementations; ``dense.h`` repeats them and a test compares."""

DEFINITION = 1  # of spec.md; digests of different definitions must never be compared
MASK64 = (1 << 64) - 1
LOW32 = (1 << 32) - 1
POSITION = 0x9E3779B97F4A7C15  # C
SPREAD = 0xD6E8FEB86659FD93  # K1
OFFSET = 0xA0761D6478BD642F  # K0
FEED = 0x85EBCA6B00000001  # K2: low word 1, so one 32-bit multiply-add does it on a GPU
SCATTER = 0x0000000085EBCA77  # N
FOLD = 0xC2B2AE3D27D4EB4F  # F
LANE_FOLD = 29


def mix_lane(x: int) -> int:
    """``M`` of ``spec.md``: a bijection of 64-bit words."""
    x ^= x >> LANE_FOLD
    return _spread(x * SPREAD & MASK64)


def mix_element(x: int) -> int:
    """``G`` of ``spec.md``, for wide words: a bijection of 64-bit words that keeps neither zero nor doubling."""
    x ^= x >> 32
    return _spread((x * SPREAD + OFFSET) & MASK64)


def mix_narrow(e: int) -> tuple[int, int]:
    """``a`` and ``b`` of ``spec.md``, for narrow words: two 32-bit words from one."""
    x = (e * SCATTER + OFFSET) & MASK64
    return x & LOW32, (x & LOW32) ^ (x >> 32)


def _spread(x: int) -> int:
    x ^= x >> 32
    x = x * FEED & MASK64
    return x ^ (x >> 32)


def finish(total: int, count: int) -> int:
    """A digest from its sum and the count that it is folded with."""
    return mix_lane((total + FOLD * (count + 1)) & MASK64)
