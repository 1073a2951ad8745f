"""What the tools that start programs have in common: the texts of their arguments, and from arguments to requests.

A side may be named by the id of a stored run as well as by a path; ids win over a folder of that name beside us.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from opguard_core.plan.redact import redact_argv
from opguard_harness.compare.request import CaptureRequest, SideRequest, split_env, steps_of
from opguard_harness.compare.sides import look_up
from opguard_harness.config import runs_dir
from opguard_harness.workspace.stored import folder_of, trace_of

REFERENCE = "The side that is right: a folder, script, trace, or id of `list_runs`."
SUSPECT = "The side in question, named likewise."
COMMIT = "Commit of the reference folder to run instead."
WORDS = "Words added to the {side}'s command."
VARIABLES = "NAME=VALUE variables for the {side}."
COMMAND = "Command; `python` is the training Python."
PYTHON = "Training Python; empty looks for one."
STEPS = "0-based steps A:B, B excluded; empty for all."
PLAN = "A preflight's plan: mode, steps, determinism."
DETERMINISTIC = "Apply and record the determinism settings."
CALLSITES = "Native callees: auto, my_ext.*."
SEMANTIC = "Calls to name: MODULE.PATH, PATH=NAME."
FILTERS = "A file of benign filters."
CASE = "Case to note it in."
RUN_AGAIN = "Another word runs it anew."
WINDOW = r"^(\d+:\d+)?$"
DEFAULT_COMMAND = ["python", "train.py"]


def side(named: str, words: list[str], variables: list[str], option: str, commit: str = "") -> SideRequest:
    """One side as a tool's arguments name it.

    Args:
        named: A path, or the id of a stored run.
        words: Words added to its command line.
        variables: ``NAME=VALUE`` pairs.
        option: What messages call the variables.
        commit: Commit to run; empty for none.

    Raises:
        SideNotFound: It is the id of something stored that is no run, such as a comparison, which has two.
        ConfigError: A variable has no name or no ``=``.
    """
    path = folder_of(named)
    stored = path.parent == runs_dir()  # a result folder is never run in
    return SideRequest(trace_of(named) if stored else path, tuple(words), split_env(variables, option), commit)


def both(arguments: Any) -> tuple[SideRequest, SideRequest]:
    """Both sides, of a tool whose arguments name two programs.

    Raises:
        SideNotFound: A side is nothing that can be run or read.
        ConfigError: A variable has no name or no ``=``, or an argument does not fit what the side is.
    """
    reference = side(arguments.reference, arguments.reference_args, arguments.reference_env, "reference_env", arguments.reference_commit)
    suspect = side(arguments.suspect, arguments.suspect_args, arguments.suspect_env, "suspect_env")
    for name, named in (("reference", reference), ("suspect", suspect)):
        look_up(name, named)
    return reference, suspect


def capture(arguments: Any) -> CaptureRequest:
    """How to observe, of a tool whose arguments name mode, steps and plan of a whole run.

    Raises:
        OpGuardError: The plan or an option cannot be used.
    """
    from opguard_core.plan.callsites import parse_callsites
    from opguard_harness.compare.planned import capture_under

    return capture_under(
        path_or_none(arguments.plan),
        mode=arguments.mode or None,
        steps=steps_of(arguments.steps, "steps"),
        deterministic=arguments.deterministic,
        python=path_or_none(arguments.python),
        timeout_s=arguments.timeout_s or None,
        semantic=tuple(arguments.semantic),
        callsites=parse_callsites(arguments.callsites, "callsites"),
    )


def path_or_none(named: str) -> Path | None:
    """The path of an optional file argument."""
    return Path(named) if named else None


def repeatable(arguments: Any) -> dict[str, Any] | None:
    """The arguments of a call less its defaults, so that it can be offered again with some of them changed.

    Returns:
        None if they hold what must not be written down again: values of variables, or words that look like secrets.
    """
    given: dict[str, Any] = {}
    for item in fields(arguments):
        value = getattr(arguments, item.name)
        default = item.default_factory() if callable(item.default_factory) else item.default
        if value != default:
            given[item.name] = value
    return None if _has_secrets(given) else given


def _has_secrets(given: Mapping[str, Any]) -> bool:
    words = [word for name in ("command", "reference_args", "suspect_args") for word in given.get(name, [])]
    return any(given.get(name) for name in ("env", "reference_env", "suspect_env")) or redact_argv(words) != words
