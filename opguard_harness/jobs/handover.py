"""What a supervisor is told through its standard input: the whole request, with everything that must not lie on a disk."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

from opguard_harness.access.rules import Access
from opguard_harness.answer.plain import dumps
from opguard_harness.errors import JobNotStarted
from opguard_harness.interface.declaration import Tool


@dataclass(frozen=True)
class Order:
    """One piece of work: the tool's name, its arguments as plain values, and the rules of the call."""

    tool: str
    arguments: dict[str, Any]
    access: Access

    def arguments_for(self, tool: Tool) -> Any:
        """The arguments as the tool takes them; they were checked by whoever gave the order."""
        return tool.arguments(**self.arguments)


def pack(tool: Tool, arguments: Any, access: Access) -> bytes:
    """An order as one JSON object."""
    document = {"tool": tool.name, "arguments": dataclasses.asdict(arguments), "access": access.to_dict()}
    return dumps(document).encode("ascii")


def unpack(data: bytes) -> Order:
    """Read an order.

    Raises:
        JobNotStarted: It ends in the middle.
    """
    try:
        document = json.loads(data)
    except ValueError as error:
        raise JobNotStarted("The process that started this job ended before it had said what to do.") from error
    return Order(document["tool"], document["arguments"], Access.from_dict(document["access"]))
