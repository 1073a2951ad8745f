"""What makes a fact of the contract equal on both sides: a table of key patterns, first match wins.

A setting that a knob covers is fixed by the knob; anything else by whoever wrote the programs. Pure; imports no torch.
"""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from functools import lru_cache

from opguard_core.contract.applied import FACT_OF_KNOB
from opguard_core.contract.knobs import KNOBS, Knob


@dataclass(frozen=True)
class Fix:
    """How to make one fact equal.

    Attributes:
        text: What to do; empty where nothing has to be done.
        knob: The knob that the determinism settings hold for it, None if they have none.
    """

    text: str
    knob: Knob | None = None


_SAME_PYTHON = "Run both sides in one environment: name its interpreter with `python`, or install the same versions."
_MEMORY_ERRORS = "Look at `nvidia-smi -q -d ECC,ROW_REMAPPER`; run both sides on a card whose counts do not grow, to see whether it stays."
_SAME_LIBRARY = "Call torch.backends.cuda.preferred_blas_library and preferred_linalg_library alike at the start of both programs."
_SAME_MACHINE = "Run both sides on the same kind of machine and device."
_SAME_PRECISION = "Give both programs the same precision: default dtype, autocast regions, casts of model and data."
_SAME_PRODUCTS = "Call torch.set_float32_matmul_precision, and set torch.backends.*.allow_tf32, alike at the start of both programs."
_SAME_ATTENTION = "Choose the same attention kernel on both sides, with torch.nn.attention.sdpa_kernel."
_SAME_RANKS = "Start both sides with the same number of processes."
_SAME_LOADER = "Make the arguments of both DataLoaders equal: batch_size, shuffle or sampler, num_workers, generator."
_SAME_STATE = "Load the same checkpoint on both sides, or none on either."
_SAME_COMPILER = "Compile both sides or neither, with the same options."
_SEEDS = "Seed torch, `random`, numpy and loader workers alike, and look for a draw that only one side makes."
_NOTHING = ""
TEXTS = (
    ("transplant", "Compare runs of the programs alone; a run with a transplant shows what a replay was asked to show."),
    ("run.deterministic", "Use `deterministic` for both sides, or for neither."),
    ("knobs.*", "Use `deterministic` for both sides, or for neither."),
    ("run.argv", "Give both sides the same words, or look up what the words that differ mean."),
    ("run.*", _SAME_RANKS),
    ("env.at_step", _NOTHING),
    ("env.*_NUM_THREADS", "Set it to the same number on both sides, through `reference_env` and `suspect_env`."),
    ("env.*", "Give it the same value on both sides, through `reference_env` and `suspect_env`, or set it on neither."),
    ("threads.*", "Set OMP_NUM_THREADS to the same number on both sides."),
    ("python.*", _SAME_PYTHON),
    ("torch.*", _SAME_PYTHON),
    ("package.*", _SAME_PYTHON),
    ("platform.*", _SAME_MACHINE),
    ("cpu.*", _SAME_MACHINE),
    ("device.ecc.*", _MEMORY_ERRORS),
    ("device.*", _SAME_MACHINE),
    ("flags.default_device", "Make tensors on the same device in both programs."),
    ("flags.default_dtype", _SAME_PRECISION),
    ("flags.autocast.*", _SAME_PRECISION),
    ("flags.*sdpa*", _SAME_ATTENTION),
    ("forward.*sdpa*", _SAME_ATTENTION),
    ("flags.cuda.blas", _SAME_LIBRARY),
    ("flags.cuda.linalg", _SAME_LIBRARY),
    ("flags.*tf32*", _SAME_PRODUCTS),
    ("flags.*precision*", _SAME_PRODUCTS),
    ("forward.*precision*", _SAME_PRODUCTS),
    ("forward.deterministic_algorithms", "Use `deterministic` for both sides, or for neither."),
    ("forward.*", _SAME_PRECISION),
    ("autocast.*", _SAME_PRECISION),
    ("dtype.*", _SAME_PRECISION),
    ("flags.*", "Set it to the same value at the start of both programs."),
    ("compile.*", _SAME_COMPILER),
    (
        "extension.code",
        "Build the extensions of both sides from the same source with the same compiler, or name one installation for both.",
    ),
    ("dist.world_size", _SAME_RANKS),
    ("dist.*", "Use the same backend for the collectives of both sides."),
    ("ddp.*", "Give DistributedDataParallel the same arguments on both sides."),
    ("seed.*", _SEEDS),
    ("rng.*", _SEEDS),
    ("loader.*.exists", "Look for the DataLoader that one side makes and the other does not; the later ones are numbered otherwise."),
    (
        "loader.*.sampler_epoch",
        "Call set_epoch on the sampler of the loader that is iterated, not on another copy of it, before it is iterated.",
    ),
    ("loader.*.sampler_seed", "Give the samplers of both sides the same seed."),
    ("loader.*.sampler_generator", "Give the samplers of both sides generators with the same seed."),
    ("loader.*.generator", "Give both DataLoaders generators with the same seed, or none."),
    ("loader.*.sampler*", "Use the same sampler, with the same arguments, on both sides."),
    ("loader.*", _SAME_LOADER),
    ("load.*.exists", _NOTHING),
    ("load.*.parts", "Save and load the named tensors on both sides: register them as buffers, or add them to the state dict."),
    ("load.*.tensors", "Save and load the same state on both sides; `load.*.parts` names what only one side has."),
    ("checkpoint.*", _SAME_STATE),
    ("load.*", _SAME_STATE),
)


@lru_cache(maxsize=1024)
def fix_of(key: str) -> Fix:
    """How to make one contract key equal on both sides."""
    knob = next((knob for knob in KNOBS if FACT_OF_KNOB.get(knob.name, f"env.{knob.name}") == key), None)
    if knob is not None:
        return Fix(f"`deterministic` sets {knob.name} to {knob.value} on both sides.", knob)
    return Fix(next((text for pattern, text in TEXTS if fnmatch.fnmatchcase(key, pattern)), _NOTHING))
