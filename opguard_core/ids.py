"""Closed vocabularies shared by both halves: the words that appear in traces, answers and tools.

Values are plain strings so that they read the same in Arrow, JSON and on a terminal.
"""

from __future__ import annotations

from enum import Enum

SIDES = ("reference", "suspect")


class Word(str, Enum):
    """A word of a closed vocabulary; formats as its value on every Python version."""

    def __str__(self) -> str:
        return str(self.value)


class Kind(Word):
    """What one event row is."""

    OPERATOR = "operator"  # one ATen or custom operator call
    COLLECTIVE = "collective"  # one collective; its outputs are valid only at the first consumer
    READ = "read"  # bytes left for Python or a file (`.item()`, `.tolist()`, `.numpy()`, save)
    STATE = "state"  # the state boundary at the end of a window; slots are named `param:…`, `grad:…`, `optim:…`, `buffer:…`, `rng:…`
    MARKER = "marker"  # a point in the program without tensors of its own, see `Marker`
    SEMANTIC = "semantic"  # entry, exit, value or gradient of a call that the program or an order names; it only reads, see FORMAT.md
    GAP = "gap"  # records were dropped or a probe failed here; `args` names how many and why


class Marker(Word):
    """The `operator` of a marker event. A marker's `args` column holds facts as canonical text."""

    RUN_BEGIN = "opguard.run.begin"
    RUN_END = "opguard.run.end"  # last event of a rank that ended on its own; args: how it ended
    OPTIMIZER_INIT = "opguard.optimizer.init"
    OPTIMIZER_BEGIN = "opguard.optimizer.begin"
    OPTIMIZER_END = "opguard.optimizer.end"  # args: class, resumed step count if any, whether the update was skipped
    BACKWARD_BEGIN = "opguard.backward.begin"  # top-level autograd.backward / autograd.grad only
    BACKWARD_END = "opguard.backward.end"
    DATA_FETCH = "opguard.data.fetch"  # one batch asked of a DataLoader iterator
    LOAD_STATE = "opguard.state.load"  # a module's or optimizer's load_state_dict
    TRAIN_FORWARD = "opguard.forward.begin"  # outermost module call with gradients enabled, in training mode
    SCALER_SKIP = "opguard.scaler.skip"  # GradScaler left the update out


class Phase(Word):
    """Where in a training iteration a boundary lies."""

    DATA = "data"
    FORWARD = "forward"
    RECOMPUTE = "recompute"
    BACKWARD = "backward"
    COLLECTIVE = "collective"
    OPTIMIZER = "optimizer"
    STATE = "state"
    EVAL = "eval"


class Direction(Word):
    """How an operator used a slot."""

    IN = "in"  # bytes about to be read (pre-probe)
    OUT = "out"  # a returned tensor (post-probe)
    MUT = "mut"  # an argument the operator wrote in place (post-probe); its pre-probe is the `in` slot of the same path


class Status(Word):
    """What is known about a slot's content."""

    PROBED = "probed"  # digests were computed from the bytes, here
    CARRIED = "carried"  # not read again: digests of the write, or a look since, at the same bytes (full, trusted); cannot prove `mutated`
    UNINITIALISED = "uninitialised"  # memory not written yet; shape only, digests are 0
    METADATA = "metadata"  # the operator used shape only, or the mode skips this operator; digests are 0
    UNREADABLE = "unreadable"  # a kind of tensor we cannot fingerprint; the reason is in the manifest's coverage


class Work(Word):
    """What kind of work was given to a device."""

    KERNEL = "kernel"
    COOPERATIVE = "cooperative kernel"
    GRAPH = "graph"  # a whole recorded graph, replayed
    COPY = "copy"
    FILL = "fill"


class Origin(Word):
    """Why the pivot differs (DESIGN section 9)."""

    OPERATOR = "operator"
    ARGUMENT = "argument"
    DTYPE = "dtype"
    MUTATED = "mutated"
    UNOBSERVED_PRODUCER = "unobserved-producer"
    INPUT_DATA = "input-data"
    INITIAL_STATE = "initial-state"
    RANDOM_STATE = "random-state"
    PERMUTATION = "permutation"
    STRUCTURE = "structure"


MODES = ("verify", "full", "trusted", "sentinel")
SENTINEL = "sentinel"  # the mode that records no operator, only the state at the end of each step
OPERATOR_MODES = tuple(mode for mode in MODES if mode != SENTINEL)
VERDICTS = ("diverged", "identical", "inconclusive")
