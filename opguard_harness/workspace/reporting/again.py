"""How to make a comparison again: what ran, and the calls that would run it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from opguard_core.errors import EvidenceNotFound
from opguard_core.ids import SIDES
from opguard_core.trace.reader import Run
from opguard_harness.access.untrusted import one_line
from opguard_harness.answer.plain import dumps
from opguard_harness.compare.programs import Program, Programs, is_replayable, read_programs
from opguard_harness.errors import NotReplayable, OpenedReadOnly
from opguard_harness.workspace.stored import folder_of

_CHARS = 1_500
_ALTERED = "Not the command as it ran: it was cut, or a secret or white space in it is not shown."


def again(
    comparison: str, case: str, answer: Mapping[str, Any], confirmed: Mapping[str, Any] | None = None, runs: tuple[Run, Run] | None = None
) -> list[dict[str, str]]:
    """Command lines with what each is for; none that is not known to be whole.

    Args:
        comparison: Id of the comparison.
        case: Id of the case.
        answer: Its answer.
        confirmed: What a replay showed; the comparison that it confirms ran both programs, even where this one only read their traces.
        runs: Both traces.
    """
    ran = comparison
    calls = []
    try:
        ran, programs = _programs([comparison, *([confirmed["confirms"]] if confirmed is not None else [])])
    except NotReplayable as error:
        calls.append({"what": "compare the two stored traces again", "command": _align(answer), "note": error.message})
        if not isinstance(error, OpenedReadOnly):  # a command line that came in a pack is no advice of ours
            calls += [_run(side, run) for side, run in zip(SIDES, runs or (), strict=False)]
    else:
        first, second = programs.both
        whole = first.whole and second.whole
        note = "" if whole else "Words that look like secrets were not kept; put them back."
        needed = sorted({*first.env, *second.env})
        note += f" Variables that were set for it: {', '.join(needed)}." if needed else ""
        calls.append({"what": "run both sides and compare them", "command": _compare(first, second, answer), "note": note.strip()})
    if answer["pivot"] is not None and is_replayable(folder_of(ran)):
        command = f"opguard-harness call confirm_difference {shlex.quote(dumps({'comparison': ran, 'case': case}))}"
        calls.append({"what": "replay the step that differs, in private copies", "command": command, "note": ""})
    calls.append({"what": "check this report once more", "command": f"opguard-harness report {shlex.quote(case)} --check", "note": ""})
    return [_told(call) for call in calls]


def _programs(comparisons: list[str]) -> tuple[str, Programs]:
    """The first of some comparisons that ran programs, and what it ran.

    Raises:
        NotReplayable: None of them did; said of the first.
    """
    refusals = []
    for name in comparisons:
        try:
            return name, read_programs(folder_of(name))
        except NotReplayable as error:
            refusals.append(error)
        except EvidenceNotFound:
            continue  # it was removed; the others may still be there
    raise refusals[0]


def _run(side: str, run: Run) -> dict[str, str]:
    """How one side ran, as its trace tells it."""
    manifest = run.manifest
    command = f"cd {shlex.quote(manifest.cwd or manifest.user_root)} && {shlex.join(manifest.argv)}"
    return {
        "what": f"run the {side}'s program as it ran then",
        "command": command,
        "note": "Folder and command line are those of its trace.",
    }


def _told(call: Mapping[str, str]) -> dict[str, str]:
    """A call on visible lines; a command that those do not hold as it is says so."""
    told = {key: one_line(text, _CHARS) for key, text in call.items()}
    return told if told["command"] == call["command"] else {**told, "note": f"{_ALTERED} {told['note']}".strip()}


def _compare(first: Program, second: Program, answer: Mapping[str, Any]) -> str:
    words = ["opguard-harness", "compare", "--reference", str(first.folder), "--suspect", str(second.folder)]
    words += ["--reference-commit", first.commit] if first.commit else []
    words += ["--mode", answer["mode"]]
    shared = len(first.argv)
    while first.argv[:shared] != second.argv[:shared]:
        shared -= 1
    for name, program in (("--reference-args", first), ("--suspect-args", second)):
        rest = program.argv[shared:]
        words += [name, shlex.join(rest)] if rest else []
    return shlex.join([*words, "--", *first.argv[:shared]])


def _align(answer: Mapping[str, Any]) -> str:
    words = ["opguard-harness", "compare", "--reference", answer["trace"]["reference"], "--suspect", answer["trace"]["suspect"]]
    return shlex.join(words)
