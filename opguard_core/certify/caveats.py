"""What an honest reader has to be told beside a verdict: what it cannot see, and what makes its place no bug's place.

None of this changes a verdict. `identical` means equal, not right; two precisions cannot agree bit for bit; a program
that does not reproduce itself differs somewhere in every pair of its runs.
"""

from __future__ import annotations

from opguard_core.certify.completeness import Completeness
from opguard_core.certify.findings import RankFindings
from opguard_core.certify.reasons import reason
from opguard_core.certify.verdict import Reason
from opguard_core.contract.compare import compare_ranks
from opguard_core.ids import Origin

POLICY_SHARE = 0.5
"""Share of the model's results in another precision from which on a `dtype` pivot is called a policy, not a place."""

RUN_TO_RUN, CROSS_STACK = "run-to-run", "cross-stack"

LIMITS = {
    RUN_TO_RUN: "One program computed the same bits twice. That does not say that they are right: a mistake that it makes every time "
    "is invisible here.",
    CROSS_STACK: "Both sides computed the same bits. That does not say that they are right: a bug that both sides have is invisible here.",
}

_SEED = "Seed every generator that the program draws from (torch.manual_seed, random.seed, numpy.random.seed, those of the loaders)."
_OUTSIDE = (
    "Look for what is new in every run: unseeded `random` or numpy, time, process ids, addresses, the order of sets and folders, "
    "files that a run changes."
)
_RACE = "Compare once more: if the place moves, it is a race or an operator that is not deterministic; see `--deterministic`."
_FIXES = {
    str(Origin.RANDOM_STATE): ("a random generator is in another state", _SEED),
    str(Origin.INITIAL_STATE): ("parameters or buffers start out differently", f"{_SEED} {_OUTSIDE}"),
    str(Origin.INPUT_DATA): ("the batch differs", f"{_SEED} {_OUTSIDE}"),
    str(Origin.ARGUMENT): ("an argument that Python computed differs", _OUTSIDE),
    str(Origin.UNOBSERVED_PRODUCER): ("a value that nothing observed made differs", _OUTSIDE),
    str(Origin.STRUCTURE): ("other work was done, or the same work on other values", f"{_RACE} {_OUTSIDE}"),
}
# What is given to a program from outside; the rest of a contract is what it made of that itself.
_GIVEN = ("env.", "package.")
_AROUND = ("python.", "torch.", "platform.", "cpu.", "device.", "run.", "threads.", "knobs.", "compile.", "extension.")
_DRAWN = {str(Origin.RANDOM_STATE), str(Origin.INITIAL_STATE)}


def determinism(completeness: Completeness) -> str:
    """What an `identical` speaks for: the same program run again, or two programs that ought to compute the same."""
    programs = [
        {str((trace.manifest.contract.get("source.tree"), trace.manifest.contract.get("run.argv"))) for trace in run.ranks.values()}
        for run in (completeness.reference, completeness.suspect)
    ]
    return RUN_TO_RUN if programs[0] == programs[1] else CROSS_STACK


def _is_one_program(completeness: Completeness) -> bool:
    """Both sides are known to be the same source tree with the same command line."""
    runs = completeness.reference, completeness.suspect
    known = all(trace.manifest.contract.get("source.tree") for run in runs for trace in run.ranks.values())
    return known and determinism(completeness) == RUN_TO_RUN


def precision(found: RankFindings) -> list[Reason]:
    """The pivot is the first of many casts: the sides follow different precision policies."""
    if not found.pivot or found.pivot[0].origin != Origin.DTYPE:
        return []
    share = next((share for share in reversed(found.shares) if share.window == found.pivot[0].node.window), None)
    if share is None or not share.floating or share.recast < POLICY_SHARE * share.floating:
        return []
    return [reason("precision-policy", share=share.recast / share.floating)]


def futures(findings: list[RankFindings]) -> list[Reason]:
    """Everything is equal so far, and the next draw will not be: generators ended in different states."""
    apart = {name: found.rank for found in reversed(findings) for name in found.drawn_apart}
    if not apart:
        return []
    return [reason("generators-apart", names=", ".join(f"{name} on rank {rank}" for name, rank in sorted(apart.items())))]


def reproducibility(completeness: Completeness, origin: str) -> list[Reason]:
    """The sides differ because generators were not seeded, or because one program does not agree with itself.

    Args:
        completeness: Both traces.
        origin: Origin of the difference that the answer is about.
    """
    seeds = _seeds(completeness)
    if origin in _DRAWN and seeds is not None:
        return [reason("unseeded", reference=seeds[0], suspect=seeds[1])]
    if not _is_one_program(completeness) or _settings_differ(completeness):
        return []
    what, hint = _FIXES.get(origin, ("equal work gave different bits", _RACE))
    return [reason("runs-differ", what=what, hint=hint)]


def _seeds(completeness: Completeness) -> tuple[int, int] | None:
    """Seeds of torch's default generator on the first pair of ranks, where both are known and differ."""
    for left, right in completeness.ranks.pairs:
        seeds = [
            run.ranks[rank].manifest.contract.get("seed.torch")
            for run, rank in ((completeness.reference, left), (completeness.suspect, right))
        ]
        if isinstance(seeds[0], int) and isinstance(seeds[1], int) and seeds[0] != seeds[1]:
            return seeds[0], seeds[1]
    return None


def _settings_differ(completeness: Completeness) -> bool:
    contracts = [
        {rank: trace.manifest.contract for rank, trace in run.ranks.items()} for run in (completeness.reference, completeness.suspect)
    ]
    return any(
        (item.severity != "cosmetic" and item.key.startswith(_GIVEN))
        or (item.severity in ("arithmetic", "order") and item.key.startswith(_AROUND))
        for item in compare_ranks(*contracts)
    )
