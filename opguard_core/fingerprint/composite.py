"""Digests of tensors that are made of several arrays: ``spec.md`` section 5."""

from __future__ import annotations

from collections.abc import Sequence

from opguard_core.fingerprint.constants import MASK64, POSITION, finish, mix_lane
from opguard_core.fingerprint.digest import Digests


def combine(kind: str, parts: Sequence[Digests]) -> Digests:
    """One fingerprint from those of the parts, in their order.

    Args:
        kind: What the parts make up, ASCII, for example "sparse_coo"; different kinds never look alike.
        parts: Their digests.

    Cost: some microseconds.
    """
    seed = 0
    for letter in kind.encode("ascii"):
        seed = mix_lane((seed + letter + POSITION) & MASK64)
    nbytes = sum(part.nbytes for part in parts)
    xor32 = 0
    for part in parts:
        xor32 ^= part.xor32
    return Digests(
        mix64=_chain(seed, [part.mix64 for part in parts], nbytes),
        value64=_chain(seed, [part.value64 for part in parts], len(parts)),
        bag64=_chain(seed, [part.bag64 for part in parts], len(parts)),
        xor32=xor32,
        trivial=all(part.trivial for part in parts),
        nbytes=nbytes,
    )


def _chain(seed: int, digests: Sequence[int], count: int) -> int:
    total = seed
    for digest in digests:
        total = mix_lane((total + digest + POSITION) & MASK64)
    return finish(total, count)
