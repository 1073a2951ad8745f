"""Markdown for RESULTS.md: tables, criteria, the machine, and sections that are replaced between markers."""

from __future__ import annotations

import datetime
import os
import platform
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

RESULTS = Path(__file__).with_name("RESULTS.md")


@dataclass(frozen=True)
class Criterion:
    """One measured number and the bound that it has to keep.

    Attributes:
        what: What is bounded.
        measured: The number.
        limit: The most that it may be.
        unit: Of both.
        at_least: The limit is the least instead.
    """

    what: str
    measured: float
    limit: float
    unit: str = ""
    at_least: bool = False

    @property
    def holds(self) -> bool:
        """Whether the number keeps its bound."""
        return self.measured >= self.limit if self.at_least else self.measured <= self.limit

    def row(self) -> tuple[str, str, str, str]:
        """What, measured, bound, and whether it holds."""
        bound = f"{'at least' if self.at_least else 'at most'} {cell(self.limit)} {self.unit}".strip()
        return self.what, f"{cell(self.measured)} {self.unit}".strip(), bound, "yes" if self.holds else "**no**"


@dataclass
class Section:
    """What one section of the benchmark measured.

    Attributes:
        how: One or two sentences: what was run, how often, what the numbers are.
        tables: Markdown, in order.
        criteria: Bounds, held or not.
    """

    how: str
    tables: list[str] = field(default_factory=list)
    criteria: list[Criterion] = field(default_factory=list)

    def markdown(self, facts: str) -> str:
        """The section's text between its markers."""
        parts = [f"{facts}\n{self.how}", *self.tables]
        if self.criteria:
            parts.append(criteria_table(self.criteria))
        return "\n\n".join(parts)


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table; floats get three significant digits, at most three decimals."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(cell(value) for value in row) + " |" for row in rows]
    return "\n".join(lines)


def cell(value: object) -> str:
    """One table cell."""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, float):
        size = abs(value)
        return f"{value:,.0f}" if size >= 100 else f"{value:.1f}" if size >= 10 else f"{value:.2f}" if size >= 1 else f"{value:.3f}"
    return "" if value is None else str(value).replace("|", "\\|")


def criteria_table(criteria: Iterable[Criterion]) -> str:
    """All bounds with what was measured."""
    return table(("criterion", "measured", "bound", "holds"), (one.row() for one in criteria))


def machine() -> str:
    """Date, processor, load and versions, in one line."""
    now = datetime.datetime.now(datetime.timezone.utc)
    load = os.getloadavg()[0]
    return f"{now:%Y-%m-%d}, {processor()}, {os.cpu_count()} cores, load {load:.1f}, Python {platform.python_version()}."


def processor() -> str:
    """The processor's name, as the system gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def replace_section(text: str, name: str, body: str) -> str:
    """Put a body between the markers of a section.

    Args:
        text: The whole file.
        name: Of the section.
        body: Markdown.

    Returns:
        The new text; what stands outside the markers is untouched. A section without markers is added at the end.
    """
    begin, end = f"<!-- measured: {name} -->", f"<!-- /measured: {name} -->"
    block = f"{begin}\n{body.strip()}\n{end}"
    pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
    if pattern.search(text):
        return pattern.sub(lambda _: block, text, count=1)
    return f"{text.rstrip()}\n\n## {name.capitalize()}\n\n{block}\n"
