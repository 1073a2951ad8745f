"""Filters for people: who declared what harmless and why, and what that hides. All text in a filter passes the escape."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from opguard_harness.report.escape import terminal

_SHOWN = 110
_SIDES = ("reference", "suspect")


def list_page(path: Path, filters: list[dict[str, Any]]) -> list[str]:
    """A filter file, a few lines for each filter.

    Args:
        path: The file.
        filters: Filters in plain form.
    """
    lines = [f"{len(filters) or 'no'} {'filter' if len(filters) == 1 else 'filters'} in {_line(str(path))}"]
    for rule in filters:
        lines += _filter(rule)
        added = ", ".join(_line(rule[key]) for key in ("created", "author") if rule[key])
        lines += [f"  added     {added}"] if added else []
    return lines


def preview_page(found: dict[str, Any]) -> list[str]:
    """What filters do to a stored comparison.

    Args:
        found: Plain form of a preview.
    """
    before, after = (_verdict(found[key]) for key in ("before", "after"))
    lines = [
        f"verdict     {before} -> {after}" if before != after else f"verdict     {before}, with and without",
        f"hidden      {found['differences_hidden']} differences; all filters together: {found['pairs_hidden']} pairs of boundaries",
    ]
    if found["refused"]:
        lines.append(f"refused     {_line(found['refused'], 300)}")
    for entry in found["filters"]:
        lines += _filter(entry)
        counts = [f"{entry['hits']} hidden", f"{entry['refused']} refused", f"{entry['partly']} left visible: another slot differs too"]
        lines.append(f"  effect    {', '.join(text for text in counts if not text.startswith('0 ')) or 'none'}")
        lines += [f"  hides     step {item['step']}, rank {item['rank']}: {_boundary(item)}" for item in entry["hidden"]]
    return lines


def _filter(rule: dict[str, Any]) -> list[str]:
    places = [f"{side} {_place(rule[side])}" for side in _SIDES if rule[side]]
    return [
        f"{terminal(rule['id'])}: {_line(rule['operator'])} {_line(rule['slot'])} at {' and '.join(places)}",
        f"  reason    {_line(rule['reason'], 500)}",
        f"  evidence  {', '.join(_line(item, 300) for item in rule['evidence'])}",
    ]


def _place(site: dict[str, Any]) -> str:
    return f"{_line(site['file'])} in {_line(site['function'])} | {_line(site['text'])}"


def _boundary(item: dict[str, Any]) -> str:
    place = item["suspect"] or item["reference"]
    where = f" at {_line(place['file'])}:{place['line']}" if place else ""
    return f"{_line(item['operator'])} {_line(item['slot'])}{where}"


def _verdict(judged: dict[str, Any]) -> str:
    reasons = f" ({', '.join(judged['reasons'])})" if judged["reasons"] else ""
    return f"{judged['verdict']}{reasons}"


def _line(text: str, limit: int = _SHOWN) -> str:
    """One escaped line of bounded length."""
    flat = " ".join(text.split())
    return terminal(flat if len(flat) <= limit else f"{flat[: limit - 3]}...")
