"""Rows of Markdown tables that survive a run which is cut: each goes to standard output and to a file as soon as it is known."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class Rows:
    """One file of tables.

    Args:
        path: Appended to; None for standard output alone.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)

    def line(self, text: str = "") -> None:
        """Write one line, and see to it that it is on the disk."""
        print(text, flush=True)
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(text + "\n")
                file.flush()
                os.fsync(file.fileno())

    def head(self, title: str, how: str, columns: Sequence[str]) -> None:
        """Begin a table."""
        self.line(f"\n### {title}\n\n{how}\n")
        self.line("| " + " | ".join(columns) + " |")
        self.line("|" + "---|" * len(columns))

    def row(self, cells: Sequence[object]) -> None:
        """One row; None is an empty cell, floats have three digits."""
        self.line("| " + " | ".join(_cell(cell).replace("|", "\\|").replace("\n", " ") for cell in cells) + " |")


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.3g}" if isinstance(value, float) and abs(value) < 1000 else f"{value:,.0f}" if isinstance(value, float) else str(value)


def where(device: str) -> str:
    """Date, commit, card, versions: what a reader needs beside a number."""
    import torch

    card = torch.cuda.get_device_name() if device.startswith("cuda") else f"{platform.machine()} CPU, {torch.get_num_threads()} threads"
    built = f", CUDA {torch.version.cuda}" if device.startswith("cuda") else ""
    today = time.strftime("%Y-%m-%d", time.gmtime())
    return f"{today}, commit {commit()}, {card}, torch {torch.__version__}{built}, Python {platform.python_version()}."


def observers(engines: Any) -> str:
    """Who observed and who computed the digests, out of a manifest's ``engines``; with the reason where it is a fallback."""
    words = []
    for name, report in engines.items() if isinstance(engines, dict) else ():
        facts = report if isinstance(report, dict) else {}
        why = facts.get("why_not_native") or ""
        words.append(f"{name}{'' if facts.get('active', True) else ' (not active)'}{f': {why}' if why else ''}")
        digests = facts.get("fingerprint")
        for device, one in digests.items() if isinstance(digests, dict) else ():
            if isinstance(one, dict):
                words.append(f"{device} digests by {one.get('backend')} ({one.get('reason')})")
    return "; ".join(words)[:240]


def commit() -> str:
    """The commit that is measured: OPGUARD_COMMIT where the tree has no repository beside it."""
    if told := os.environ.get("OPGUARD_COMMIT"):
        return told
    asked = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=Path(__file__).parent, check=False)
    return asked.stdout.strip() or "unknown"
