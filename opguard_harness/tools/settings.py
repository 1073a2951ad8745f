"""Settings that two runs do not share, fit to be shown: key and values come from the runs."""

from __future__ import annotations

from typing import Any

from opguard_core.evidence.refs import JobRef
from opguard_core.ids import SIDES
from opguard_harness.access.untrusted import one_line
from opguard_harness.answer.plain import dumps
from opguard_harness.interface.declaration import Evidence
from opguard_harness.tools.answers import Found

KEY_CHARS = 120
VALUE_CHARS = 160
_QUOTE_VALUE_CHARS = 40


def value_of(value: Any, limit_chars: int = VALUE_CHARS) -> Any:
    """A value in little: numbers and switches as they are, anything else as one line."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return one_line(value if isinstance(value, str) else dumps(value), limit_chars)


def values_of(item: dict[str, Any], limit_chars: int = VALUE_CHARS) -> dict[str, Any]:
    """Key and both values of a difference."""
    return {"key": one_line(item["key"], KEY_CHARS), **{side: value_of(item[side], limit_chars) for side in SIDES}}


def cited(found: Found, items: list[dict[str, Any]]) -> list[Evidence]:
    """Evidence of single settings: fields of the stored answer; nothing for a comparison outside the state folder."""
    from opguard_harness.workspace.evidence import evidence

    if not found.itself():
        return []
    return [
        evidence(
            JobRef(found.name, "answer", f"contract.{item['key']}"),
            f"reference {value_of(item['reference'], _QUOTE_VALUE_CHARS)}, suspect {value_of(item['suspect'], _QUOTE_VALUE_CHARS)}",
        )
        for item in items
    ]


def counted(number: int, what: str = "setting") -> str:
    """A number with its noun."""
    return f"{number} {what}{'' if number == 1 else 's'}"
