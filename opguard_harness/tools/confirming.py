"""Tool `confirm_difference`: does the difference of a comparison come again, in private copies, at the same place?"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opguard_core.evidence.refs import JobRef, is_holder
from opguard_core.ids import SIDES
from opguard_harness.access.rules import current
from opguard_harness.config import runs_dir
from opguard_harness.errors import InvalidArguments
from opguard_harness.interface.declaration import Evidence, Kind, Next, Result, Role, Tool, argument
from opguard_harness.report.progress import Progress
from opguard_harness.report.transplant_words import sentence
from opguard_harness.tools import compare, sides
from opguard_harness.tools.answers import Found, answer_named, brief
from opguard_harness.tools.recording import recording
from opguard_harness.tools.shown import shown
from opguard_harness.workspace.evidence import ARTEFACTS, evidence

if TYPE_CHECKING:
    from opguard_harness.compare.confirm import Confirmation
    from opguard_harness.compare.programs import Program, Programs
    from opguard_harness.compare.transplant import Investigation


@dataclass(frozen=True)
class ConfirmDifferenceArguments:
    comparison: str = argument("A comparison that ran both programs, with a first difference.", role=Role.STORED)
    reference_env: list[str] = argument("The variables of that comparison again, each NAME=VALUE.", [], role=Role.VARIABLES)
    suspect_env: list[str] = argument("Likewise for the suspect.", [], role=Role.VARIABLES)
    transplant: bool = argument("Then put the reference's bytes there: does anything else differ by itself?", False)
    case: str = argument(sides.CASE, "")
    token: str = argument(sides.RUN_AGAIN, "", max_length=64)


@dataclass(frozen=True, kw_only=True)
class ConfirmDifferenceResult(Result):
    """``outcome``: same place, another place or not reproduced. ``comparison``: the replay's own, if it could be judged.

    ``damage``: what differs byte by byte, in brief; all of it is `job:<id>/damage`. ``repro``: why the boundary has no `repro.py`.
    ``transplant``: whether all that differs goes through there (``outcome``: cause, several causes, not all, not judged, not possible),
    and at which ``places`` bytes were put; all of it is `job:<id>/transplant`.
    ``twice``: why there were two replays.
    """

    sparse = True

    outcome: str
    confirms: str
    comparison: str = ""
    verdict: str = ""
    steps: list[int] = field(default_factory=list)
    pivot: dict[str, Any] = field(default_factory=dict)
    traces: dict[str, str] = field(default_factory=dict)
    damage: dict[str, Any] = field(default_factory=dict)
    repro: str = ""
    transplant: dict[str, Any] = field(default_factory=dict)
    why: str = ""
    twice: str = ""


_TWICE = "The first replay recorded steps {} to {}: what differs was there already when they began, so a second one began at step {}."


def confirm_difference(arguments: ConfirmDifferenceArguments, progress: Progress) -> ConfirmDifferenceResult:
    """Replay both sides of a comparison around its first difference."""
    from opguard_harness.compare.confirm import confirm
    from opguard_harness.workspace.stored import result_folder

    found, programs, variables = asked_for(arguments)
    folder = result_folder(progress.job, "confirm")
    done = confirm(found.answer, programs, variables, folder, progress, transplant=arguments.transplant)
    return _told(found, done)


def asked_for(arguments: ConfirmDifferenceArguments) -> tuple[Found, Programs, dict[str, dict[str, str]]]:
    """The comparison, what it ran, and the variables given again; refuses before anything runs what can be seen to be wrong.

    Raises:
        OpGuardError: There is no such comparison or difference, or its programs may not or cannot be run again.
    """
    from opguard_harness.compare.programs import read_programs
    from opguard_harness.compare.request import split_env
    from opguard_harness.workspace.stored import folder_of

    found = answer_named(arguments.comparison)
    if found.answer["pivot"] is None:
        raise InvalidArguments(
            f"{found.name} is {found.answer['verdict']}: there is no first difference to confirm.",
            hint="`first_difference` says what it found instead.",
            next=(Next("first_difference", {"comparison": found.name}, "what it found"),),
        )
    programs = read_programs(folder_of(arguments.comparison))
    variables = {side: split_env(getattr(arguments, f"{side}_env"), f"{side}_env") for side in SIDES}
    for program in programs.both:
        _admit(program, getattr(arguments, f"{program.name}_env"), programs.python)
    return found, programs, variables


def _admit(program: Program, env: list[str], python: Path | None) -> None:
    """Check a stored program by the rules of this call, as `compare` checks a named one.

    Raises:
        OutsideRoots: Its folder leaves the roots.
        CommandRefused: It starts something that is not on the list.
        VariableRefused: A variable would load code or redirect it.
    """
    (tool,) = compare.TOOLS
    folder = str(program.folder)
    current().admit(
        tool,
        compare.CompareArguments(
            reference=folder, suspect=folder, command=list(program.argv), suspect_env=env, python="" if python is None else str(python)
        ),
    )


def _told(found: Found, done: Confirmation) -> ConfirmDifferenceResult:
    """The outcome as a result."""
    replay, answer = done.replay, done.replay.answer
    again = None if answer is None else Found(answer, done.folder.name)
    pivot = None if answer is None else answer["pivot"]
    first, last = replay.steps[0], replay.steps[1] - 1
    where = f"steps {first} to {last}"
    text = {
        "same place": f"Reproduced: replayed in private copies ({where}), {found.name} differs at the same place again",
        "another place": f"Reproduced elsewhere: replayed ({where}), the sides of {found.name} differ, at another place",
        "not reproduced": _not_reproduced(found.name, where, "" if answer is None else answer["verdict"]),
    }[done.outcome]
    described = f"; {done.described.text}" if done.described.text else ""
    origin = f"; origin: {pivot['origin']}{described}." if pivot else f"{described}."
    origin += _cause(done)
    following = [] if again is None else [Next("first_difference", {"comparison": again.name}, "what the replay shows, mode verify")]
    if done.outcome == "not reproduced":
        following.append(Next("list_differences", {"comparison": found.name}, "what else the first runs showed"))
    files = [] if again is None else _files(again.name, done)
    following += [Next("get_evidence", {"id": item.id}, "what differs, byte by byte") for item in files if item.id.endswith("/damage")]
    cited = [*(again.events(pivot, pivot["slot"]) if again is not None and pivot else []), *files]
    claim = f"{text}; origin: `{pivot['origin']}`." if pivot else f"{text}."
    shows = [item.id for item in [*cited, *(again.itself() if again is not None else [])]]
    return ConfirmDifferenceResult(
        summary=f"{text}{origin}",
        outcome=done.outcome,
        confirms=found.name,
        comparison="" if again is None else again.name,
        verdict="" if answer is None else answer["verdict"],
        steps=list(replay.steps),
        pivot=brief(again, pivot) if again is not None and pivot else {},
        traces={} if answer is None else answer["trace"],
        twice=_TWICE.format(replay.before[0], replay.before[1] - 1, first) if replay.before else "",
        damage=shown(done.described.damage, 300),
        repro=shown(done.described.refused, 300),
        transplant=_causes(again, done.transplant),
        why=shown(_why(done), 300),
        evidence=cited or (again.itself() if again is not None else []),
        next=[*following, *(recording(again.name, claim, shows) if again is not None and pivot else [])][:3],
    )


def _why(done: Confirmation) -> str:
    """Why nothing came again, and why something of it was not kept."""
    said = [done.replay.outcome] if done.outcome == "not reproduced" else []
    return "; ".join([*said, *([done.described.why] if done.described.why else [])])


def _not_reproduced(name: str, where: str, verdict: str) -> str:
    """What exactly did not come again: nothing differed, nothing could be said, or nothing ran to its end."""
    if not verdict:
        return f"Not reproduced: the replay of {name} ({where}) gave no answer, so nothing is known"
    if verdict == "inconclusive":
        return f"Not reproduced: replayed ({where}), the sides of {name} could not be judged"
    return f"Not reproduced: replayed ({where}), the difference of {name} did not come again"


def _cause(done: Confirmation) -> str:
    """What transplants showed, in a sentence without names of the run's; the places are in `transplant`."""
    found = done.transplant
    if found is None:
        return ""
    elsewhere = done.outcome != "same place"
    told = {"outcome": found.outcome, "steps": found.steps, "put": 0, "places": found.causes, "elsewhere": elsewhere}
    return f" {sentence(told)}"


def _causes(again: Found | None, shown_by: Investigation | None) -> dict[str, Any]:
    """What transplants showed, in brief."""
    if shown_by is None or again is None:
        return {}
    places = [brief(again, pivot) for pivot in shown_by.causes]
    for later in places[1:]:
        del later["id"]  # its event is in the trace of a later replay
    return {"outcome": shown_by.outcome, "text": shown(shown_by.text, 600), "replays": len(shown_by.rounds), "places": places}


def _files(name: str, done: Confirmation) -> list[Evidence]:
    """Evidence of what lies in the result folder; nothing for a folder outside the state folder."""
    if not is_holder(name) or not (runs_dir() / name).is_dir():
        return []
    described = done.described
    quotes = {"damage": described.text, "kept": "the kept tensors", "repro": "the boundary as a program of one file"}
    files = [evidence(JobRef(name, artefact), quote) for artefact, quote in quotes.items() if ARTEFACTS[artefact] in described.files]
    return files if done.transplant is None else [*files, evidence(JobRef(name, "transplant"), done.transplant.outcome)]


TOOLS = (
    Tool(
        name="confirm_difference",
        group="evidence",
        text="Run both programs of a comparison again in private copies, mode verify, around the step that differs, and say whether that "
        "comes again at the same place. Use it before you blame code: a difference that moves or goes is a race or hardware.",
        arguments=ConfirmDifferenceArguments,
        result=ConfirmDifferenceResult,
        run=confirm_difference,
        check=asked_for,
        read_only=False,
        destructive=True,
        open_world=True,
        kind=Kind.JOB,
        wait_s=20.0,
    ),
)
