"""Does a difference come again? Both programs of a comparison once more, in private copies, around the step in question.

Not reproduced is an answer, too: what does not come again is a race, hardware, or something outside the programs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from opguard_core.certify.filters import Filter, parse_filters
from opguard_core.ids import SIDES
from opguard_core.trace.files import write_atomic
from opguard_harness.answer.plain import dumps
from opguard_harness.answer.schema import checked
from opguard_harness.compare.checkout import check_out
from opguard_harness.compare.folders import Results, choose_out, scratch
from opguard_harness.compare.interpreter import find
from opguard_harness.compare.kept_boundary import Described, asked, describe_kept, holds
from opguard_harness.compare.pipeline import ANSWER_FILE, judged, run_all
from opguard_harness.compare.programs import Program, Programs, changed_files
from opguard_harness.compare.replay import Pristine, Replay, Replayer, place_of
from opguard_harness.compare.request import CaptureRequest
from opguard_harness.compare.sides import ProgramSide
from opguard_harness.compare.transplant import Investigation, investigate
from opguard_harness.errors import NotReplayable
from opguard_harness.report.progress import Progress

TRANSPLANT_FILE = "transplant.json"
_FILTER_KEYS = ("id", "operator", "slot", *SIDES, "reason", "evidence", "created", "author")

Variables = Mapping[str, Mapping[str, str]]
"""Values of the variables of each side."""


@dataclass(frozen=True)
class Confirmation:
    """What came of a replay.

    Attributes:
        outcome: "same place", "another place" or "not reproduced".
        replay: The replay.
        folder: Where its traces lie.
        described: The first difference byte by byte.
        transplant: What transplants showed about the cause; None if none were asked for, or nothing came again.
    """

    outcome: str
    replay: Replay
    folder: Path
    described: Described = field(default_factory=Described)
    transplant: Investigation | None = None


def confirm(
    answer: dict[str, Any], programs: Programs, variables: Variables, out: Path, progress: Progress, *, transplant: bool = False
) -> Confirmation:
    """Replay both sides of a comparison around its first difference.

    Args:
        answer: The stored answer; it has a pivot.
        programs: What the comparison ran.
        variables: Values of what was set for each side.
        out: Folder for the results, absent.
        progress: Where to say what goes on.
        transplant: Find out whether that is the cause of all that differs, by more replays.

    Raises:
        NotReplayable: A side is not any more what was compared, or something of it was not kept.
        OpGuardError: A side's folder, commit or interpreter is not there.
    """
    for program in programs.both:
        _require_whole(program, variables)
    pivot = answer["pivot"]
    folders = [program.folder for program in programs.both]
    with scratch("confirm", folders) as temporary:
        sides = tuple(_side(program, variables, answer, temporary) for program in programs.both)
        interpreter = find(programs.python)
        final = choose_out(out, folders)
        filters = _filters(answer)
        keep = asked(answer, {side: Path(answer["trace"][side]) for side in SIDES})
        capture = CaptureRequest(deterministic=programs.deterministic, python=programs.python, timeout_s=programs.timeout_s, keep=keep)
        with Results(final) as results:
            results.keep()
            replayer = Replayer(
                Pristine((sides[0], sides[1]), temporary),
                capture,
                run=lambda again, how, name: run_all(again, interpreter, how, results, progress, below=name),
                judge=lambda runs, steps: judged(runs, results.partial, results.final, steps, progress, filters),
                say=progress.say,
            )
            replay = _replay(replayer, answer, results)
            described, investigation = Described(), None
            if replay.answer is not None:
                described = describe_kept(answer, replay.answer, _traces(replay.answer, results), results.partial)
                replay.answer["seconds"]["total"] = round(replay.seconds, 3)
                write_atomic(results.partial / ANSWER_FILE, f"{dumps(checked(replay.answer), indent=1)}\n".encode("ascii"))
                if transplant and replay.diverged:
                    investigation = investigate(replay, replayer, lambda trace: _here(trace, results))
                    write_atomic(results.partial / TRANSPLANT_FILE, f"{dumps(investigation.as_dict(), indent=1)}\n".encode("ascii"))
            results.finish()
    return Confirmation(_outcome(pivot, replay), replay, final, described, investigation)


def _replay(replayer: Replayer, answer: dict[str, Any], results: Results) -> Replay:
    """Replay the step of an answer's first difference; once more, where the replay's own one is another boundary, to keep that."""
    pivot = answer["pivot"]
    # What a reader calls step k may lie in window k or k + 1.
    window = pivot["step"], pivot["step"] + 2, min(answer["compared"]["steps"], default=0)
    found = replayer.look(*window)
    if not found.diverged or found.answer is None or holds(found.answer, _traces(found.answer, results)):
        return found
    keep = asked(found.answer, _traces(found.answer, results))
    if not keep or keep == replayer.capture.keep:
        return found
    replayer.capture = replace(replayer.capture, keep=keep)
    again = replayer.look(*window)
    return again if again.diverged else found


def _traces(answer: dict[str, Any], results: Results) -> dict[str, Path]:
    """Where the traces of a replay's answer lie while the results are unfinished."""
    return {side: _here(answer["trace"][side], results) for side in SIDES}


def _here(trace: str, results: Results) -> Path:
    path = Path(trace)
    return results.partial / path.relative_to(results.final) if path.is_relative_to(results.final) else path


def _outcome(pivot: Mapping[str, Any], replay: Replay) -> str:
    if not replay.diverged or replay.answer is None:
        return "not reproduced"
    return "same place" if place_of(replay.answer["pivot"]) == place_of(pivot) else "another place"


def _require_whole(program: Program, variables: Variables) -> None:
    """Refuse a side of which something is missing that it ran with."""
    if not program.whole:
        raise NotReplayable(
            f"The {program.name} was started with words that look like secrets; they were not kept, so it cannot be started again.",
            hint="Pass secrets in another way than the command line and compare again.",
        )
    given = set(variables.get(program.name, {}))
    missing, more = sorted(set(program.env) - given), sorted(given - set(program.env))
    if missing or more:
        what = f"needs the variables {', '.join(missing)} again: values are not kept" if missing else f"ran without {', '.join(more)}"
        raise NotReplayable(f"The {program.name} {what}.", hint=f"Give `{program.name}_env` with the same NAME=VALUE as for `compare`.")
    if not program.folder.is_dir():
        raise NotReplayable(f"The {program.name}'s folder {program.folder} is gone.")


def _side(program: Program, variables: Variables, answer: dict[str, Any], temporary: Path) -> ProgramSide:
    """A program as it was compared; its commit is checked out again."""
    folder = check_out(program.folder, program.commit, temporary / program.name) if program.commit else program.folder
    changed = changed_files(program, folder, Path(answer["trace"][program.name]))
    if changed:
        shown = ", ".join(changed[:4]) + (f" and {len(changed) - 4} more" if len(changed) > 4 else "")
        raise NotReplayable(
            f"The {program.name} is not any more what was compared: {shown} changed.",
            hint="Compare again; the new comparison can be confirmed.",
        )
    return ProgramSide(program.name, folder, program.argv, dict(variables.get(program.name, {})), program.folder)


def _filters(answer: dict[str, Any]) -> tuple[Filter, ...]:
    """The filters that the comparison was made with."""
    return tuple(parse_filters({key: rule[key] for key in _FILTER_KEYS if rule.get(key)} for rule in answer["filters"]))
