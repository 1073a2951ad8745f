"""The clients that we know: which file each reads, how it writes its project's folder, and the other ways to add a server.

Source: code.claude.com/docs/en/mcp and /plugins/marketplace-reference; cursor.com/docs/mcp and cursor.com/docs/mcp/install-links.
"""

from __future__ import annotations

import base64
import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from opguard_harness.clients.entry import SERVER, Launch
from opguard_harness.errors import UsageError
from opguard_harness.shipped import shipped_folder

SCOPES = ("project", "user")
MARKETPLACE = "opguard"


@dataclass(frozen=True)
class Client:
    """One client.

    Attributes:
        name: As `install` takes it.
        title: As people call it.
        root: How its files write the project's folder.
        files: Its file by scope, below the project's or the user's folder; a scope without one has a file that only it may write.
        after: What a person has to do once the file is written.
    """

    name: str
    title: str
    root: str
    files: dict[str, str]
    after: str


CLAUDE = Client(
    "claude",
    "Claude Code",
    "${CLAUDE_PROJECT_DIR:-.}",
    {"project": ".mcp.json"},
    "Start Claude Code in that folder and approve the server once; `/mcp` shows it.",
)
CURSOR = Client(
    "cursor",
    "Cursor",
    "${workspaceFolder}",
    {"project": ".cursor/mcp.json", "user": ".cursor/mcp.json"},
    "Open the folder in Cursor and switch the server on under Settings, MCP.",
)
CLIENTS = (CLAUDE, CURSOR)


def find_client(name: str) -> Client:
    """The client of that name.

    Raises:
        UsageError: There is none.
    """
    for client in CLIENTS:
        if client.name == name:
            return client
    known = ", ".join(client.name for client in CLIENTS)
    raise UsageError(f"There is no client {name!r}.", hint=f"Known: {known}; other clients take the same entry in a file of their own.")


def snippet(client: Client, launch: Launch) -> dict[str, Any]:
    """What stands in the client's file when nothing else does."""
    return {"mcpServers": {SERVER: launch.entry(client.root)}}


def as_text(content: Any) -> str:
    """JSON as we ship it."""
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def add_line(scope: str, launch: Launch) -> str:
    """The shell line with which Claude Code adds the server itself."""
    entry = launch.entry(CLAUDE.root)
    return shlex.join(["claude", "mcp", "add", "--scope", scope, SERVER, "--", entry["command"], *entry["args"]])


def plugin_lines() -> list[str]:
    """The shell lines that install the plugin, which brings the server and a skill."""
    folder = shipped_folder("prompts") / "plugin"
    return [
        shlex.join(["claude", "plugin", "marketplace", "add", str(folder)]),
        shlex.join(["claude", "plugin", "install", f"{SERVER}@{MARKETPLACE}"]),
    ]


def deeplink(launch: Launch) -> str:
    """The link that makes Cursor offer to add the server for the user."""
    config = base64.b64encode(json.dumps(launch.entry(CURSOR.root), separators=(",", ":")).encode()).decode("ascii")
    return "cursor://anysphere.cursor-deeplink/mcp/install?" + urlencode({"name": SERVER, "config": config}, quote_via=quote)


def file_of(client: Client, scope: str, base: Path) -> tuple[Path, Path] | None:
    """The folder that must not be left, the project's or the user's, and the client's file below it; None where only the client writes."""
    below = client.files.get(scope)
    return (base, base / below) if below is not None else None
