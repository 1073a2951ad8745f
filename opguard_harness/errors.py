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
    hint = "Name the training's interpreter as `python` (in a shell --python PATH); `doctor` checks it."


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
    hint = "`list_filters` shows them."


class FilterRefused(ConfigError):
    """A new filter names a difference that no filter may hide."""

    slug = "filter-refused"
    hint = "Follow that difference instead; `first_difference` shows it."


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
    hint = "Use a name of the tool list, written exactly so."


class InvalidArguments(ConfigError):
    """The arguments of a tool do not fit its declaration."""

    slug = "invalid-arguments"
    hint = "Call it again with the arguments that its entry in the tool list has, in the types that stand there."


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


class ToolNotOffered(ConfigError):
    """The server was started without that tool."""

    slug = "tool-not-offered"
    hint = "Ask for the server to be started without --read-only, or with that group in --tools."


class OutsideRoots(ConfigError):
    """A path lies outside the folders that this server may touch."""

    slug = "outside-roots"
    hint = "Name a path inside a root, or start the server with another --root DIR."


class PathRefused(ConfigError):
    """A path is none that a file of this system can have, or what is there is no file of a fitting size."""

    slug = "path-refused"
    hint = "Name an existing file or folder by its plain path."


class CommandRefused(ConfigError):
    """A command line starts something that tools may not start."""

    slug = "command-refused"
    hint = "Start a script with python, torchrun or accelerate; --allow-command adds a program when the server starts."


class VariableRefused(ConfigError):
    """A variable for a program would load code or redirect it."""

    slug = "variable-refused"
    hint = "Set it in the program, or compare in a shell with `opguard-harness compare --suspect-env`."


class JobNotFound(ConfigError):
    """No job has that id."""

    slug = "job-not-found"
    hint = "`list_runs` lists jobs, runs and comparisons."


class JobDamaged(ConfigError):
    """A file of a job is not what we wrote."""

    slug = "job-damaged"
    hint = "Start the work again with another `token`; `list_runs` still lists what the job has left."


class JobNotStarted(RunError):
    """A job's supervisor was never told what to do: whoever started it had ended."""

    slug = "job-not-started"
    hint = "Make the same call again; nothing was run."


class CaseNotFound(ConfigError):
    """No case has that id."""

    slug = "case-not-found"
    hint = "`open_case` opens one; asked again for the same folder it opens the same."


class PromptInvalid(ConfigError):
    """A text of the folder prompts/ is not written as it should be."""

    slug = "prompt-invalid"
    hint = "Install opguard-mcp again; the text was changed or cut."


class ClientConfigRefused(ConfigError):
    """A client's configuration file cannot be changed without losing something, or leads out of its folder."""

    slug = "client-config-refused"
    hint = "Put the entry that `opguard-harness install` prints into the file by hand."


class CaseDamaged(ConfigError):
    """A file of a case is not what we wrote."""

    slug = "case-damaged"
    hint = "Repair or remove that file, or open another case with `open_case` and case 'new'; nothing was written."


class ClaimRefused(ConfigError):
    """A finding claims what it does not show."""

    slug = "claim-refused"
    hint = "Cite ids from `evidence` of results, or give the basis 'externally reported'."


class FindingNotFound(ConfigError):
    """A case has no finding of that id."""

    slug = "finding-not-found"
    hint = "`open_case` with the case shows its findings."


class ReportRefused(ConfigError):
    """A report would say something that cannot be checked now."""

    slug = "report-refused"
    hint = "Withdraw that finding with `record_finding` and `withdraw`, or compare again and record it anew."


class ListenRefused(ConfigError):
    """The server cannot listen where it was told to."""

    slug = "listen-refused"
    hint = "Name a free port of 127.0.0.1, or port 0 for any free one."


class ComparisonNotReady(RunError):
    """What was named is the job of a comparison that has not ended, or has ended without an answer."""

    slug = "comparison-not-ready"
    hint = "Wait for it with `get_job`, or compare again."


class SearchRefused(ConfigError):
    """An expression does not compile, or a search takes too long."""

    slug = "search-refused"
    hint = "Give literal text, or name files to look in."


class PackRefused(ConfigError):
    """A case cannot be packed, or not into that file."""

    slug = "pack-refused"
    hint = "Name a file that does not exist yet; `opguard-harness pack` says what a pack holds."


class PackDamaged(ConfigError):
    """A file is no pack, or is not what was packed; nothing of it was used."""

    slug = "pack-damaged"
    hint = "Ask for the pack again, and compare its sha256 with the one that `opguard-harness pack` printed."


class PackConflict(ConfigError):
    """A pack holds something that is stored here under the same id and is not the same."""

    slug = "pack-conflict"
    hint = "Set XDG_STATE_HOME to an empty folder and open it there."


class FiltersUnapproved(ConfigError):
    """A verdict rests on filters that came with a pack and that nobody here approved."""

    slug = "filters-unapproved"
    hint = "Read them with `opguard-harness open FILE.zip`; then open it with --approve-filters."


class PruneRefused(ConfigError):
    """Nobody can say what a stored result relies on, so nothing is removed."""

    slug = "prune-refused"
    hint = "Move what is damaged out of the state folder to give it up; then prune again."


class NotReplayable(ConfigError):
    """A side of a comparison cannot be run again."""

    slug = "not-replayable"
    hint = "Compare the programs again, then confirm that comparison."


class OpenedReadOnly(NotReplayable):
    """What came out of a pack is read only; nothing in it is started, and nothing is added to it."""

    slug = "opened-read-only"
    hint = "Compare your own copies of both programs, in a case of your own: `compare` and `open_case`."
