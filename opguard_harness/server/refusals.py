"""Requests that the SDK cannot read: it drops them, and their client would wait for ever. Each is answered with an error instead.

JSON that Python reads and the SDK does not: a lone surrogate (half a character, as in file names that are no UTF-8), numbers
with thousands of digits, several requests in one array, a request whose parts have the wrong types.
"""

from __future__ import annotations

import json
from typing import Any

from mcp.types import jsonrpc_message_adapter
from pydantic import ValidationError

_LONGEST_ID = 18  # digits; longer numbers are not read, since that takes as long as one likes
_REFUSED = (
    "This request cannot be read. Send one JSON-RPC 2.0 object in a line, with `method` a string and `params` an object, whole "
    "characters only (no lone surrogates), and no number of thousands of digits."
)


def refusals(line: str) -> list[str] | None:
    """What to answer to a line that is not passed on.

    Args:
        line: One line from a client.

    Returns:
        None for a message that the SDK reads. Else one answer for each request in the line that says who it is; none for what
        is no request, since nobody waits for an answer to that.
    """
    try:
        jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValidationError:
        return [_refusal(name) for name in _asked(line)]
    return None


def _asked(line: str) -> list[str | int]:
    """The ids of all requests in a line."""
    try:
        document = json.loads(line, parse_int=lambda digits: int(digits) if len(digits) <= _LONGEST_ID else None)
    except (ValueError, RecursionError):
        return []
    found: list[Any] = document if isinstance(document, list) else [document]
    return [item["id"] for item in found if isinstance(item, dict) and "method" in item and type(item.get("id")) in (str, int)]


def _refusal(name: str | int) -> str:
    return json.dumps({"jsonrpc": "2.0", "id": name, "error": {"code": -32600, "message": _REFUSED}}) + "\n"
