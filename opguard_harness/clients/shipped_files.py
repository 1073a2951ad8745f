"""The files that ship with the repository and say how the server is started; a test holds them to this."""

from __future__ import annotations

from typing import Any

from opguard_core import __version__
from opguard_harness.clients.entry import SERVER, Launch
from opguard_harness.clients.known import CLAUDE, CURSOR, MARKETPLACE, as_text, snippet

DESCRIPTION = "Finds the first operator at which two LLM trainings stop being bit-for-bit equal."
_AUTHOR = {"name": "OpGuard"}
_PLUGIN = "prompts/plugin"


def manifest() -> dict[str, Any]:
    """The plugin's own description; its server and skill are found by their places."""
    return {
        "name": SERVER,
        "version": __version__,
        "description": DESCRIPTION,
        "author": _AUTHOR,
        "license": "Apache-2.0",
        "keywords": ["determinism", "debugging", "pytorch", "training", "mcp"],
    }


def marketplace() -> dict[str, Any]:
    """A marketplace with that one plugin, so that a folder on disk can be installed from."""
    plugin = {"name": SERVER, "source": "./", "description": DESCRIPTION, "version": __version__}
    return {"name": MARKETPLACE, "owner": _AUTHOR, "metadata": {"description": DESCRIPTION, "version": __version__}, "plugins": [plugin]}


def generated_files() -> dict[str, str]:
    """Text by path, from the repository's root."""
    return {
        CLAUDE.files["project"]: as_text(snippet(CLAUDE, Launch())),
        CURSOR.files["project"]: as_text(snippet(CURSOR, Launch())),
        f"{_PLUGIN}/.mcp.json": as_text(snippet(CLAUDE, Launch())),
        f"{_PLUGIN}/.claude-plugin/plugin.json": as_text(manifest()),
        f"{_PLUGIN}/.claude-plugin/marketplace.json": as_text(marketplace()),
    }
