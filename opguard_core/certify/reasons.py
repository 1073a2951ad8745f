"""Every reason why a verdict is not stronger, with what to do about it. The slugs are a stable key of the answer."""

from __future__ import annotations

from opguard_core.certify.verdict import Reason

_TEXTS: dict[str, tuple[str, str]] = {
    "torn-trace": (
        "The {side} trace of rank {rank} stops early: {detail}",
        "Run that side again and let it end; look at its output for why it was killed.",
    ),
    "dropped-records": (
        "The {side} trace of rank {rank} lost {count} records in front of the first difference, so an earlier one may be hidden.",
        "Run again with a larger buffer, on a faster disk, or with `--steps` around the place.",
    ),
    "gap": (
        "The {side} trace of rank {rank} has {count} gaps ({detail}) in front of the first difference.",
        "See `coverage` for what could not be observed; narrow the run with `--steps`.",
    ),
    "unobserved-work": (
        "Rank {rank} of the {side} did work that could not be observed and that touched observed tensors: {detail}.",
        "See `coverage`; run that part without the extension or compiled region, or in `--mode verify`.",
    ),
    "unattributed-work": (
        (
            "The {side}, rank {rank}, gave its device {count} pieces of work that belong to no boundary and that may have touched observed "
            "tensors, {where}: {detail}."
        ),
        "{fix}",
    ),
    "uncaptured-process": (
        "A process of the {side} took part in the training and was not observed: {detail}",
        "{hint}",
    ),
    "ranks-differ": (
        "The sides do not have the same ranks: only in the reference {reference}, only in the suspect {suspect}.",
        "Run both sides with the same number of processes, or give an explicit rank map.",
    ),
    "rank-missing": (
        "Rank {rank} of the {side} left no trace.",
        "Look at that rank's output; it ended before capture began or its folder was removed.",
    ),
    "ended-early": (
        "The {side} run ended with {detail} in step {step}; what both sides have up to there is compared.",
        "Fix what ended it, or compare with `--steps` up to that step.",
    ),
    "unequal-length": (
        "The sides ran unequally many steps: steps {first} to {last} are in both, the {side} has {count} more.",
        "Run both for the same number of steps, or compare the common ones with `--steps`.",
    ),
    "steps-not-overlapping": (
        "The recorded steps do not overlap: reference {reference}, suspect {suspect}.",
        "Capture the same `--steps` on both sides; a resumed run counts on from its checkpoint.",
    ),
    "plan-mismatch": (
        "The sides were recorded under different plans: {detail}.",
        "Capture both sides with the same mode, steps and `--callsites`, or both with the same `--plan FILE`.",
    ),
    "contract-conflict": (
        "An operator gives other results for equal inputs, and the sides differ in settings that change arithmetic: {detail}.",
        "Make the two environments equal (see `contract`), or pass `--deterministic`.",
    ),
    "transplanted": (
        "The {side}, rank {rank}, is no run of its program alone: bytes of another run were put in place of {count} of its results.",
        "Compare runs without `--transplant`; what a transplant shows is told by the tool that made it.",
    ),
    "low-confidence": (
        "The only differences that matter are between operators paired by name and shape alone, first at {place}.",
        "Look at that place by hand, or reduce the structural difference between the two programs.",
    ),
    "auxiliary-output": (
        "The only difference that matters is in an auxiliary output (a workspace) of {place}, which is often not initialised.",
        "Capture with `--mode verify`, or switch that library's fused path off on both sides.",
    ),
    "ambiguous-pivot": (
        "The first difference is at one of several places that fit equally well: {place}.",
        "Compare those places by hand, or make the two programs more alike around them.",
    ),
    "low-coverage": (
        "In step {step} only {share:.0%} of the {side}'s non-trivial results have a counterpart.",
        "The programs differ too much in structure there; name what both have (`--semantic`), or compare smaller parts.",
    ),
    "unresolved-difference": (
        "A value that differs is still alive at the end of what was compared, unread: {place}.",
        "Run a few steps more, so that whatever reads it is seen.",
    ),
    "state-missing": (
        "There is no record of parameters and optimizer state at the end of step {step} of the {side}.",
        "Let the run finish that step; a run without an optimizer has no state boundary.",
    ),
    "state-unread": (
        "A part of the state of kind {kind} could not be read at the end of step {step} of the {side}, so its sum says nothing.",
        "See `coverage` (digests-lost): a device that fails loses what it had not delivered. Record that side again.",
    ),
    "trusted-work": (
        "The first difference that matters shows at {place}, and what made it was not looked into: mode trusted passes over it.",
        "Compare with `--mode full`, with `--steps` around the place if the run is long.",
    ),
    "optimizers-differ": (
        (
            "An update at {place} may stand in another step on the other side: a step ends behind the optimizers that a program steps (the "
            "reference made {reference}, the suspect {suspect}), and what it updates by hand after them belongs to the next step."
        ),
        "Compare programs that divide their parameters alike, or update by hand before the optimizer's step on both sides.",
    ),
    "steps-differ": (
        (
            "Both sides make the same updates, and one step holds other ones on each side: what differs first, at {place}, may stand in "
            "another step on the other side. A step ends behind the optimizer that counts and those that follow it at once."
        ),
        "Step the optimizers in the same order on both sides, all of them one after another at the end of an iteration.",
    ),
    "state-exchanged": (
        (
            "At the end of a step, at {place}, both sides hold the same parameters, buffers and optimizer state, but under each other's "
            "names: modules without a common parent are named in the order they run, or values have changed places."
        ),
        "Put the modules into one parent, or look whether the code that assigns state exchanges it.",
    ),
    "start-unknown": (
        (
            "The {side} loaded an optimizer's state before its first update, and nothing tells how many updates came before: its steps are "
            "counted from 0 and may have been compared with others than their own."
        ),
        "Record that side with `python -m opguard_core run --step-offset N ...` and compare the trace.",
    ),
    "state-differs": (
        (
            "The state of rank {rank} differs for the first time at the end of step {step} ({kinds}); a sentinel trace holds no operators "
            "that could say where."
        ),
        "Compare the programs with `--mode sentinel`, which replays that step, or with `--mode verify --steps {first}:{end}`.",
    ),
    "state-reordered": (
        (
            "From step {step} on the state of rank {rank} holds the same elements in another order ({kinds}): another layout, or a "
            "permutation; a sentinel trace cannot tell."
        ),
        "Compare the programs with `--mode verify --steps {first}:{end}`.",
    ),
    "not-reproduced": (
        "{what}, and the replay of steps {first} to {last} of both sides did not show it: {detail}",
        "{fix}",
    ),
    "state-unmatched": (
        "Parameters without a counterpart at the end of step {step}: only in the reference {reference}, only in the suspect {suspect}.",
        "Compare programs with the same parameters, or map the names.",
    ),
    "nothing-compared": (
        "No operator of one side has a counterpart on the other.",
        "Check that both sides are the programs you meant.",
    ),
    "narrowed-search": (
        "{count} stretches without equal content were too long to be searched in full and were paired in a band.",
        "The pairs around them are less sure; compare with `--steps` around the place.",
    ),
    "search-exhausted": (
        "Too much reads what differs at {place} to follow all of it.",
        "Compare fewer steps with `--steps` around the place.",
    ),
    "filtered-difference": (
        "A difference that a filter hides reaches what counts: {place}. What follows from it cannot be judged.",
        "Remove the filter, or remove the difference itself from one side.",
    ),
    "filters-too-wide": (
        "Filters hide {share:.1%} of all pairs, more than 5 %; what is left does not carry a verdict.",
        "Remove filters, or remove what they hide from one side.",
    ),
    "filter-refused": (
        "Filter {id} names {what}, which no filter may hide: {place}. It was judged as if that filter did not exist.",
        "Remove the filter and follow that difference.",
    ),
    "precision-policy": (
        (
            "{share:.0%} of the model's results have another precision on the other side: two precision policies, whose bits cannot agree. "
            "The place is the first cast, not the place of a bug."
        ),
        "Compare programs with the same precision (default dtype, autocast, casts of model and data), or expect this answer.",
    ),
    "unseeded": (
        "The default generator of torch has another seed on each side ({reference} and {suspect}), so what is drawn from it differs.",
        "Call torch.manual_seed with the same number on both sides, and seed `random`, numpy and loader workers where they are used.",
    ),
    "generators-apart": (
        (
            "Nothing that was compared differs, but generators of torch ended in different states ({names}): one side drew more, or was "
            "seeded otherwise, and nothing read what it drew. What is drawn from them next will differ."
        ),
        "Run more steps if the training draws from them; otherwise look for the extra draw with `--mode verify`.",
    ),
    "runs-differ": (
        "Both sides are the same program with the same settings, as far as those were recorded, and it does not agree with itself: {what}.",
        "{hint}",
    ),
}

SLUGS = tuple(_TEXTS)


def reason(slug: str, **facts: object) -> Reason:
    """Build a reason.

    Args:
        slug: One of `SLUGS`.
        **facts: Values for its sentence.
    """
    text, fix = _TEXTS[slug]
    return Reason(slug, text.format(**facts), fix.format(**facts))
