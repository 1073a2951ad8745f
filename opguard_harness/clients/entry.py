"""The one entry from which every client's configuration is made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

SERVER = "opguard"
COMMAND = "opguard-harness"
MODULE = "opguard_harness"


@dataclass(frozen=True)
class Launch:
    """How the program is started: the words before ``mcp``."""

    words: tuple[str, ...] = (COMMAND,)

    def entry(self, root: str) -> dict[str, Any]:
        """The server's entry in a client's configuration.

        Args:
            root: Folder that tools may touch, as the client writes it.
        """
        return {"command": self.words[0], "args": [*self.words[1:], "mcp", "--root", root]}


def is_ours(entry: Any) -> bool:
    """Whether an entry of a client's file starts this program, wherever it lies and with whatever options."""
    if not isinstance(entry, dict) or not isinstance(entry.get("command"), str) or not isinstance(entry.get("args", []), list):
        return False
    name = entry["command"].replace("\\", "/").rpartition("/")[2]
    args: list[Any] = entry.get("args", [])
    return args[:1] == ["mcp"] if name == COMMAND else args[:3] == ["-m", MODULE, "mcp"]


def renewed(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Our entry with what somebody has added to it: other keys, and the options behind ``mcp``."""
    options = old["args"][old["args"].index("mcp") :]
    start = new["args"][: new["args"].index("mcp")]
    return {**old, "command": new["command"], "args": [*start, *options]}
