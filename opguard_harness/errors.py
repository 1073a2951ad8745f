"""Errors that only the harness raises; the tree they hang in is ``opguard_core.errors``."""

from __future__ import annotations

from opguard_core.errors import ConfigError, EnvironmentUnsupported, OpGuardError, RunError


class UsageError(ConfigError):
    """The command line does not parse."""

    slug = "usage"


class SideNotFound(ConfigError):
    """A side of the comparison is not there, or is not something that can be run or read."""

    slug = "side-not-found"
    hint = "Name a folder that holds the training program, a Python script, or a trace directory."


class CommitNotFound(ConfigError):
    """The commit of ``--reference-commit`` cannot be checked out."""

    slug = "commit-not-found"
    hint = "Name a commit that `git rev-parse` knows in the folder's repository."


class OutRefused(ConfigError):
    """``--out`` cannot be used."""

    slug = "out-refused"
    hint = "Name a folder that is absent or empty and does not lie inside either side."


class ScratchRefused(ConfigError):
    """There is no folder for private copies that does not lie inside a side."""

    slug = "scratch-refused"
    hint = "Set XDG_CACHE_HOME to a folder that does not lie inside either side."


class NoTrainingPython(EnvironmentUnsupported):
    """No interpreter that can run the training was found."""

    slug = "no-training-python"
    hint = "Name the training's interpreter with --python PATH; `opguard-harness doctor --python PATH` checks it."


class SpaceShort(EnvironmentUnsupported):
    """The disk has no room for what is about to be written."""

    slug = "space-short"
    hint = "Free some space, or name a folder on another disk with --out."


class FiltersDamaged(ConfigError):
    """A filter file cannot be read, or is not what we wrote."""

    slug = "filters-damaged"
    hint = "Repair or remove the file; nothing was hidden and nothing was written."


class FilterNotFound(ConfigError):
    """No filter has the id that was named."""

    slug = "filter-not-found"
    hint = "`opguard-harness filters list` shows them."


class FilterRefused(ConfigError):
    """A new filter names a difference that no filter may hide."""

    slug = "filter-refused"
    hint = "Follow that difference instead; `opguard-harness call first_difference` shows it."


class DemoMissed(RunError):
    """The demo ran but did not find the difference that was planted in it."""

    slug = "demo-missed"
    hint = "Run `opguard-harness doctor`; then `opguard-harness trace` on the folders that the answer names."


class WindowNotReached(RunError):
    """``--steps`` names steps that the program did not run."""

    slug = "window-not-reached"
    hint = "Name steps that both programs run; they are 0-based and the last one is not included."


class UnknownTool(ConfigError):
    """``call`` names a tool that does not exist."""

    slug = "unknown-tool"
    hint = "`opguard-harness tools` lists them."


class InvalidArguments(ConfigError):
    """The arguments of a tool do not fit its declaration."""

    slug = "invalid-arguments"
    hint = "`opguard-harness tools --json` shows each tool's arguments."


class AnswerUndelivered(OpGuardError):
    """Standard output was closed before the answer was written."""

    slug = "answer-undelivered"
    hint = "Keep the reader of standard output open until the command ends; the answer is also in answer.json under --out."


class SystemRefused(OpGuardError):
    """The operating system refused something."""

    slug = "system"
    hint = "Check the path, its permissions and the free space that the message names."


class Internal(OpGuardError):
    """A mistake of ours: an exception that no code expected."""

    slug = "internal"
    hint = "Please report it with the traceback; no verdict was given."
