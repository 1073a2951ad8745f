"""What a client tells the model about this server before any tool is looked at."""

from __future__ import annotations

from importlib import resources

from opguard_harness.access.rules import Access
from opguard_harness.interface.declaration import GROUPS


def instructions(access: Access) -> str:
    """The text of instructions.md, and what this server leaves out of it."""
    text = (resources.files("opguard_harness.server") / "instructions.md").read_text("ascii").strip()
    left_out = []
    if access.read_only:
        left_out.append("This server is read-only: nothing is launched or written.")
    if set(access.groups) != set(GROUPS):
        left_out.append(f"It offers only: {', '.join(access.groups)}.")
    return "\n\n".join([text, " ".join(left_out)] if left_out else [text])
