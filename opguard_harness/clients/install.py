"""Put the server's entry into a client's file, or take it out again; every other server and name stays as it is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opguard_harness.clients.config_file import ConfigFile, read_config, replace_config
from opguard_harness.clients.entry import SERVER, is_ours, renewed
from opguard_harness.errors import ClientConfigRefused

_SERVERS = "mcpServers"


@dataclass(frozen=True)
class Change:
    """What became of a client's file.

    Attributes:
        state: ``added``, ``updated``, ``unchanged``, ``removed`` or ``absent`` (there was nothing to remove).
        entry: Our entry as it stands there now; None if it does not.
        backup: Where the file from before is kept; None if it was not changed, or not there.
    """

    state: str
    entry: dict[str, Any] | None
    backup: Path | None = None


def put(path: Path, base: Path, entry: dict[str, Any]) -> Change:
    """Add our entry, or renew it; options and keys that somebody has added to it stay.

    Args:
        path: The client's file; made with its folder if it is not there.
        base: The folder that must not be left.
        entry: Our entry.

    Raises:
        ClientConfigRefused: The file would lose something, or our name stands there for another program.
    """
    file = read_config(path, base)
    servers = _servers(path, file)
    old = servers.get(SERVER)
    if old is not None and not is_ours(old):
        raise _foreign(path)
    new = entry if old is None else renewed(old, entry)
    if new == old:
        return Change("unchanged", new)
    backup = replace_config(file, {**file.content, _SERVERS: {**servers, SERVER: new}})
    return Change("added" if old is None else "updated", new, backup)


def take_out(path: Path, base: Path) -> Change:
    """Remove our entry; a file that held nothing else is removed.

    Raises:
        ClientConfigRefused: The file would lose something, or our name stands there for another program.
    """
    file = read_config(path, base)
    servers = _servers(path, file)
    if SERVER not in servers:
        return Change("absent", None)
    if not is_ours(servers[SERVER]):
        raise _foreign(path)
    left = {name: server for name, server in servers.items() if name != SERVER}
    alone = not left and set(file.content) == {_SERVERS}
    return Change("removed", None, replace_config(file, None if alone else {**file.content, _SERVERS: left}))


def _servers(path: Path, file: ConfigFile) -> dict[str, Any]:
    servers = file.content.get(_SERVERS, {})
    if not isinstance(servers, dict):
        raise ClientConfigRefused(f"{path} has {_SERVERS!r}, which is no object; it was left as it is.")
    return servers


def _foreign(path: Path) -> ClientConfigRefused:
    return ClientConfigRefused(
        f"{path} has a server {SERVER!r} that starts another program; it was left as it is.", hint="Rename or remove that entry by hand."
    )
