"""What transplants showed, in sentences without texts of the run's: every page and answer says it in the same words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_OUTCOMES = {
    "cause": "With the reference's bytes at one place both sides are equal in {window}: all that differs there goes through that place.",
    "several causes": "{places} places part without one following from the other; with the reference's bytes at all of them both sides are "
    "equal in {window}. They may share a line of Python.",
    "not all": "With the reference's bytes put there something still differs in {window}.",
    "not judged": "Whether anything still differs with the reference's bytes put there could not be judged.",
    "not possible": "Putting the reference's bytes there could not show whether all that differs goes through that place.",
}


def sentence(found: Mapping[str, Any]) -> str:
    """The outcome of an investigation.

    Args:
        found: With ``outcome``, ``steps``, ``places``, ``put`` (0 says nothing) and ``elsewhere``, as in report.json.
    """
    about = "This is about the replay's own difference, which is at another place. " if found["elsewhere"] else ""
    said = _OUTCOMES[found["outcome"]].format(window=recorded(found["steps"]), places=len(found["places"]))
    count = found["put"]
    put = f" {count} {'boundary' if count == 1 else 'boundaries'} got other bytes." if count else ""
    return f"{about}{said}{put}"


def recorded(steps: Sequence[int]) -> str:
    """A half-open window of a replay; work behind the last update lies in the next one."""
    first, last = steps[0], steps[1] - 1
    return f"step {first} up to its update" if first == last else f"steps {first} to {last} (of the last one up to its update)"
