"""Every error a user can meet, as one tree.

    OpGuardError(message, *, slug, hint, **facts)
      ConfigError            UnknownOption, ConflictingOptions, FilterInvalid
      EnvironmentUnsupported DependencyMissing, ForeignPackage
      PlanError              PlanMismatch
      CaptureError           NothingCaptured, FlushFailed, TransplantFailed
      TraceFormatError       NotATrace, UnsupportedVersion, CorruptSegment   (path, offset, expected, found)
      EvidenceError          EvidenceNotFound, EvidenceInvalid, EvidenceStale, ReproRefused
      RunError               LaunchFailed, TimedOut, Interrupted, ContractStopped
      StateError             StateDamaged, StateMismatch, StateUnsupported, StateNotRestored

A message says what happened (with values) and why; the hint says what to do. The slug is the stable key that
documentation, ``--json`` answers and tests use. Before the first step of a training we fail loudly; after it we never
raise into the user's code: the capture records a gap instead.
"""

from __future__ import annotations

from typing import Any, ClassVar


class OpGuardError(Exception):
    """Base of every error meant for the user.

    Args:
        message: What happened and why, with the values that matter.
        slug: Stable key; defaults to the class's own.
        hint: What to do about it, as a full sentence; defaults to the class's own.
        **facts: Structured values (paths, offsets, names) for machine readers.
    """

    slug: ClassVar[str] = "error"
    hint: ClassVar[str] = "Run `opguard-harness doctor` and report what it prints."

    def __init__(self, message: str, *, slug: str | None = None, hint: str | None = None, **facts: Any) -> None:
        super().__init__(message)
        self.message = message
        self._slug = slug or type(self).slug
        self._hint = hint or type(self).hint
        self.facts = facts

    def as_dict(self) -> dict[str, str]:
        """The ``error`` object of a ``--json`` answer."""
        return {"slug": self._slug, "text": self.message, "fix": self._hint}

    def __str__(self) -> str:
        return f"{self.message} {self._hint} [{self._slug}]"


class ConfigError(OpGuardError):
    """The command or its options cannot be carried out as given."""

    slug = "config"
    hint = "See `opguard-harness --help`."


class UnknownOption(ConfigError):
    slug = "unknown-option"


class ConflictingOptions(ConfigError):
    slug = "conflicting-options"


class FilterInvalid(ConfigError):
    """A benign filter names more or less than one difference, or lacks a reason or evidence."""

    slug = "filter-invalid"
    hint = "A filter names one place, one operator and one slot, and says why, with evidence from an answer."


class EnvironmentUnsupported(OpGuardError):
    """The machine or an interpreter lacks something the request needs."""

    slug = "environment-unsupported"


class DependencyMissing(EnvironmentUnsupported):
    slug = "dependency-missing"


class ForeignPackage(EnvironmentUnsupported):
    slug = "foreign-package"


class PlanError(OpGuardError):
    """A plan file does not fit the run it is used for."""

    slug = "plan"


class PlanMismatch(PlanError):
    slug = "plan-mismatch"


class CaptureError(OpGuardError):
    """Observation inside the training process failed."""

    slug = "capture"


class NothingCaptured(CaptureError):
    slug = "nothing-captured"


class FlushFailed(CaptureError):
    slug = "flush-failed"


class TransplantFailed(CaptureError):
    """Bytes could not be put in place of a result; the run was ended before it went on."""

    slug = "transplant-failed"
    hint = "Only a result of the same dtype and shape in plain memory can be replaced, with bytes kept by `--keep`."


class TraceFormatError(OpGuardError):
    """A trace cannot be read; facts carry path, offset, expected and found."""

    slug = "trace-format"
    hint = "Capture the run again, or name another trace directory."


class NotATrace(TraceFormatError):
    slug = "not-a-trace"


class UnsupportedVersion(TraceFormatError):
    slug = "unsupported-trace-version"
    hint = "Install the OpGuard release that wrote the trace, or a newer one."


class CorruptSegment(TraceFormatError):
    slug = "corrupt-segment"


class EvidenceError(OpGuardError):
    """A citation does not resolve to the recorded fact it names."""

    slug = "evidence"


class EvidenceNotFound(EvidenceError):
    """What the evidence names is not recorded here."""

    slug = "evidence-not-found"
    hint = "Take ids from `evidence` of a result; `list_runs` shows what is stored."


class EvidenceInvalid(EvidenceError):
    """A text is not a reference to evidence."""

    slug = "evidence-invalid"
    hint = "Copy an id from `evidence` of a result, such as ev:0123456789ab/0/57."


class EvidenceStale(EvidenceError):
    """What the evidence named is not any more what it was."""

    slug = "evidence-stale"
    hint = "Compare again, and take the ids of the new result."


class ReproRefused(EvidenceError):
    """A boundary cannot be rebuilt from what was kept of it."""

    slug = "repro-refused"
    hint = "`get_evidence` of `damage` still shows what differs; a boundary before or after it may be one that can be rebuilt."


class RunError(OpGuardError):
    """A training could not be started, or did not end by itself."""

    slug = "run"


class LaunchFailed(RunError):
    slug = "launch-failed"


class TimedOut(RunError):
    slug = "timed-out"


class Interrupted(RunError):
    slug = "interrupted"


class ContractStopped(RunError):
    slug = "contract-stopped"
    hint = "Make the two environments equal, or leave --stop-on-contract out to compare them all the same."


class StateError(OpGuardError):
    """A snapshot cannot be written or read."""

    slug = "state"


class StateDamaged(StateError):
    slug = "state-damaged"
    hint = "Take another snapshot; this file was changed, cut short, or is no snapshot."


class StateMismatch(StateError):
    slug = "state-mismatch"
    hint = "Build the program as it was when the snapshot was taken; nothing was changed."


class StateUnsupported(StateError):
    slug = "state-unsupported"
    hint = "Leave it out, or turn it into plain values and tensors (a `state_dict` of your own)."


class StateNotRestored(StateError):
    slug = "state-not-restored"
    hint = "Do not train on: start again, and look at that object's `load_state_dict`."
