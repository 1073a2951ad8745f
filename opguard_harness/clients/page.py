"""What `install` says: as values for programs, and as lines for people."""

from __future__ import annotations

from typing import Any

from opguard_harness.clients.entry import SERVER, Launch
from opguard_harness.clients.install import Change
from opguard_harness.clients.known import Client, add_line, as_text, deeplink, plugin_lines, snippet
from opguard_harness.report.escape import terminal

_SAID = {
    "added": "added to",
    "updated": "brought up to date in",
    "unchanged": "is already in",
    "removed": "removed from",
    "absent": "is not in",
}


def described(client: Client, scope: str, path: str | None, launch: Launch, change: Change, notes: list[str]) -> dict[str, Any]:
    """Everything there is to say.

    Args:
        client: Whose file it is.
        scope: ``project`` or ``user``.
        path: The client's file; None where only the client may write.
        launch: How the program is started.
        change: What became of the file; of state ``shown`` if nothing was to.
        notes: Sentences worth saying with it.
    """
    told = change.entry or {}
    page: dict[str, Any] = {
        "client": client.name,
        "scope": scope,
        "path": path,
        "state": change.state,
        "entry": {key: told[key] for key in ("command", "args") if key in told} or None,  # a variable that somebody added may be a secret
        "backup": change.backup,
        "notes": notes,
    }
    if change.state == "shown":
        page |= {"snippet": snippet(client, launch), "commands": [], "link": None}
        if client.name == "claude":
            page["commands"] = [add_line(scope, launch), *plugin_lines()]
        else:
            page["link"] = deeplink(launch)
    return page


def lines(client: Client, page: dict[str, Any]) -> list[str]:
    """The same for people."""
    if page["state"] != "shown":
        said = [f"{SERVER} {_SAID[page['state']]} {terminal(page['path'])}"]
        if page["backup"] is not None:
            said.append(f"the file from before: {terminal(str(page['backup']))}")
        return [*said, *map(terminal, page["notes"])]
    said = []
    if page["path"] is not None:
        said += [f"{client.title} reads {terminal(page['path'])}; it needs this entry, which --write puts there:"]
        said += ["", as_text(page["snippet"]).rstrip("\n"), ""]
    if page["commands"]:
        add, *plugin = page["commands"]
        said += ["Or let the client do it:" if said else f"{client.title} adds it itself:", f"    {terminal(add)}"]
        said += [
            "Or install the plugin, which brings a skill, and the server if its PATH has it:",
            *(f"    {terminal(line)}" for line in plugin),
        ]
    if page["link"]:
        said += ["Or open this link, which adds it for all your projects:", f"    {page['link']}"]
    return [*said, *map(terminal, page["notes"])]
