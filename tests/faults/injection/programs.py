"""The trainings that faults are put into, and the pairs of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
HELD = ROOT / "tests" / "cases"
SHARED = ROOT.parent / "shared" / "cases"  # where they lie beside the repository


@dataclass(frozen=True)
class Program:
    """One side.

    Attributes:
        folder: Where it lies.
        world_size: Number of ranks.
        argv: Script and its arguments, or "-m" and a module.
    """

    folder: Path
    world_size: int = 1
    argv: tuple[str, ...] = ("train.py",)


@dataclass(frozen=True)
class Pair:
    """Reference and suspect; the same folder twice is one program run twice."""

    name: str
    reference: Program
    suspect: Program

    @property
    def is_same(self) -> bool:
        return self.reference == self.suspect


_SAME = (
    "clip-per-parameter diffusion-previous-step-wraps ema-shadow-aliases-weights eval-mode-sticks "
    "factored-update-aliases-momentum foreach-lists-misaligned gan-fake-not-detached moe-overflow-overwrites-slot "
    "packed-mask-cache-stale rope-table-layout-mixed scheduler-per-microbatch scaler-state-lost-on-resume "
    "vae-variance-as-std"
).split()
_EQUAL = (
    "neg-checkpoint-both-flavours neg-constants-built-differently neg-evaluation-in-between neg-reordered-updates "
    "neg-resume-equals-uninterrupted neg-self-replay-nan-inf neg-uninitialised-scratch"
).split()
_EQUAL_SHARED = "neg-attention-two-ways identical-loss-scaling-refactor benign-padded-workspace".split()
_SAME_SHARED = (
    "adamw-step-not-incremented checkpoint-batchnorm-twice clip-before-unscale cross-stack-rmsnorm-cast "
    "moe-histc-padded-bins recompute-dropout-rng swa-window-off-by-one"
).split()
_RANKS = "neg-ddp-against-manual tied-weight-reduced-twice tp-row-bias-doubled".split()


def pairs(*, ranks: bool | None = None) -> list[Pair]:
    """All pairs that exist on this machine.

    Args:
        ranks: Only those of several ranks, or only those of one; None gives both.
    """
    made = [Pair("tiny-gpt", *[Program(ROOT / "examples" / "tiny_gpt" / "reference")] * 2)]
    for cases, same, equal in ((HELD, _SAME, _EQUAL), (SHARED, _SAME_SHARED, _EQUAL_SHARED)):
        made += [Pair(name, *[Program(cases / name / "reference")] * 2) for name in same]
        made += [Pair(name, Program(cases / name / "reference"), Program(cases / name / "suspect")) for name in equal]
    for name in _RANKS:
        reference = Program(HELD / name / "reference", 2)
        made.append(Pair(name, reference, Program(HELD / name / "suspect", 2) if name.startswith("neg-") else reference))
    return [pair for pair in made if pair.reference.folder.is_dir() and (ranks is None or ranks == (pair.reference.world_size > 1))]
