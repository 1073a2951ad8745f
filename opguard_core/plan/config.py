"""What one rank is asked to capture: the argument of ``capture.session.start``.

The launcher writes a plan file, the bootstrap inside each rank turns it into one ``RunConfig``. Plain data: nothing in
it names code to import, and nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opguard_core.errors import ConfigError, ConflictingOptions, UnknownOption
from opguard_core.ids import MODES, SENTINEL
from opguard_core.plan.keeping import Keep, Transplant

BUFFER_BYTES = 64 * 1024 * 1024  # rows waiting for the writer thread, per rank

AUTO, NATIVE, DISPATCH = "auto", "native", "dispatch"
ENGINES = (AUTO, NATIVE, DISPATCH)  # who observes operators; auto: native where it can be built, else dispatch
KERNELS, PROBES, COMPILED_EAGER = "kernels", "probes", "eager"
COMPILED = (AUTO, KERNELS, PROBES, COMPILED_EAGER)  # how compiled regions are observed; auto: kernels where it works, else eager


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """One rank's orders.

    Attributes:
        run_dir: The run's trace directory (absolute, exists, 0700); this rank writes below ``rank_dir``.
        rank: Global rank, 0-based.
        world_size: Number of ranks of the program.
        local_rank: Rank within this host.
        user_root: Folder that source files are named relative to: the program's working directory at launch.
        mode: One of ``ids.MODES``.
        steps: Half-open window of 0-based steps to record, or None for all.
        step_offset: Optimizer updates done before this run began (a resumed run); None: found from the optimizer's state.
        deterministic: Whether the determinism knobs were applied in this process before capture began.
        buffer_bytes: Bound on rows in memory that wait for the writer.
        plan_hash: Digest of what both runs must share (mode, steps, boundaries); two traces compare only if equal.
        argv: The program's own command line, redacted.
        folder: Name of this rank's folder; empty: ``rank-%05d``. Ranks that a captured program starts itself write aside
            until the launcher, after the end, can tell who was who.
        facts: Contract facts that the launcher gathered once for all ranks (source tree, commit).
        keep: Boundaries that are kept in full, or None.
        transplants: Bytes of another run to put in place of results.
        semantic: Patterns of module calls and functions that get a name, see ``plan.semantic``.
        compiled: One of ``COMPILED``; what was asked for and cannot be had is said in the manifest.
        callsites: Patterns of callees that are observed where they are called, see ``plan.callsites``; empty: no code is rewritten.
        engine: One of ``ENGINES``; both give the same events. What was asked for and cannot be had is said in the manifest.
    """

    run_dir: Path
    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    user_root: Path
    mode: str = "full"
    steps: tuple[int, int] | None = None
    step_offset: int | None = None
    deterministic: bool = False
    buffer_bytes: int = BUFFER_BYTES
    plan_hash: str = ""
    argv: tuple[str, ...] = ()
    folder: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    keep: Keep | None = None
    transplants: tuple[Transplant, ...] = ()
    semantic: tuple[str, ...] = ()
    callsites: tuple[str, ...] = ()
    engine: str = AUTO
    compiled: str = AUTO

    def __post_init__(self) -> None:
        """Refuse orders that cannot be carried out."""
        if self.engine not in ENGINES:
            raise UnknownOption(f"Engine {self.engine!r} is not one of {', '.join(ENGINES)}.", hint=f"Use --engine {' or '.join(ENGINES)}.")
        if self.compiled not in COMPILED:
            raise UnknownOption(
                f"Level {self.compiled!r} is not one of {', '.join(COMPILED)}.", hint=f"Use --compiled {' or '.join(COMPILED)}."
            )
        if self.mode not in MODES:
            raise UnknownOption(f"Mode {self.mode!r} is not one of {', '.join(MODES)}.", hint=f"Use --mode {' or '.join(MODES)}.")
        if not 0 <= self.rank < self.world_size:
            raise ConfigError(
                f"Rank {self.rank} does not lie in a world of {self.world_size}.",
                hint="Check RANK and WORLD_SIZE in the environment of the program.",
            )
        if self.steps is not None and not 0 <= self.steps[0] < self.steps[1]:
            raise ConfigError(
                f"Steps {self.steps[0]}:{self.steps[1]} hold no step.", hint="Use --steps A:B with 0 <= A < B; B is not included."
            )

    @property
    def rank_dir(self) -> Path:
        """Folder of this rank's trace inside ``run_dir``."""
        return self.run_dir / (self.folder or rank_folder(self.rank))


def require_calls(mode: str, **patterns: Sequence[str]) -> None:
    """Refuse patterns of calls in a mode that looks at none; each is named by its option, ``callsites`` for ``--callsites``.

    Raises:
        ConflictingOptions: There are some, and the mode is sentinel.
    """
    for option, given in patterns.items():
        if given and mode == SENTINEL:
            raise ConflictingOptions(f"--{option} needs a mode that looks at calls, which sentinel does not.", hint="Use --mode full.")


def rank_folder(rank: int) -> str:
    """Name of one rank's folder inside a run's trace directory."""
    return f"rank-{rank:05d}"


_STEP_DIGITS = 15
MAX_STEPS = 10**_STEP_DIGITS - 1  # a number of steps keeps its value in every file and table that holds it


def parse_steps(text: str, option: str = "--steps") -> tuple[int, int]:
    """Read ``A:B``, half open and 0-based.

    Raises:
        ConfigError: The text is not two whole numbers with 0 <= A < B.
    """
    first, colon, last = text.partition(":")
    if not (colon and all(number.isdecimal() and len(number) <= _STEP_DIGITS for number in (first, last)) and int(first) < int(last)):
        raise ConfigError(
            f"{option} {text[:60]!r} is not A:B with whole numbers 0 <= A < B of at most {_STEP_DIGITS} digits.",
            hint="Steps are 0-based and B is not included.",
        )
    return int(first), int(last)
