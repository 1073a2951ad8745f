"""The report of a case as one HTML page that needs nothing but itself: no network, no other file, no script that is not in it.

The policy in its head allows the one style and the one script whose digests it names, and nothing else. Everything that matters is
in the markup; the script only opens rows of the trace.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

from opguard_harness.report.escape import json_island
from opguard_harness.report.markup import Markup, tag
from opguard_harness.report.page.damage import damage
from opguard_harness.report.page.details import again, compared, contract, filters, findings, spread, words
from opguard_harness.report.page.device import device
from opguard_harness.report.page.pivot import pivot
from opguard_harness.report.page.semantic import semantic
from opguard_harness.report.page.summary import contents, headline, summary
from opguard_harness.report.page.trace import trace

MAX_BYTES = 3_000_000
_ROWS = (700, 400, 200, 100, 40, 8)
_FINDINGS = (400, 200, 100, 50, 20, 10)
_IDS = {
    "First difference": "pivot",
    "Damage": "damage",
    "Spread": "spread",
    "Named boundaries": "semantic",
    "Device work": "device",
    "Trace": "trace",
    "Findings": "findings",
    "Settings": "contract",
    "Filters": "filters",
    "Limits": "compared",
    "Run it again": "again",
    "Words": "words",
}
_ISLAND = ("frames", "stacks", "sources")


def html_page(model: Mapping[str, Any]) -> str:
    """Lay a report out.

    Args:
        model: As `workspace.reporting.model` makes it.

    Returns:
        A page of at most `MAX_BYTES`: where that needs it, rows of the trace and findings are left out, and the page says how many.

    Raises:
        ValueError: Not even the smallest page fits.
    """
    for rows, claims in zip(_ROWS, _FINDINGS, strict=True):
        text = _page(model, rows, claims)
        if len(text.encode("utf-8")) <= MAX_BYTES:
            return text
    raise ValueError("the report does not fit into a page")


@cache
def asset(name: str) -> str:
    """Text of a file of the page."""
    return (resources.files("opguard_harness.report.page") / name).read_text("ascii")


def policy() -> str:
    """The content-security policy: one style, one script, nothing from anywhere."""
    digests = {name: base64.b64encode(hashlib.sha256(asset(name).encode("ascii")).digest()).decode("ascii") for name in _ASSETS}
    return (
        f"default-src 'none'; style-src 'sha256-{digests['page.css']}'; script-src 'sha256-{digests['page.js']}'; "
        "base-uri 'none'; form-action 'none'"
    )


_ASSETS = ("page.css", "page.js")


def _page(model: Mapping[str, Any], rows: int, most: int) -> str:
    shown = _nearest(model["trace"]["rows"], rows)
    told: dict[str, Markup | None] = {
        "First difference": pivot(model),
        "Damage": damage(model),
        "Spread": spread(model),
        "Named boundaries": semantic(model),
        "Device work": device(model),
        "Trace": trace(model, shown),
        "Findings": findings(model, most),
        "Settings": contract(model),
        "Filters": filters(model),
        "Limits": compared(model),
        "Run it again": again(model),
        "Words": words(),
    }
    sections = [part for part in told.values() if part is not None]
    names = [(name, _IDS[name]) for name, part in told.items() if part is not None]
    island = {**{key: model[key] for key in _ISLAND}, "rows": shown}
    title = f"{model['verdict']}: OpGuard report of {model['case']['id']}"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy()),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", title),
        tag("style", Markup(asset("page.css"))),
    )
    body = tag(
        "body",
        tag("a", "Skip to the pivot", href="#pivot", class_="skip"),
        tag("header", headline(model), contents(names), class_="top"),
        tag("main", summary(model), sections, tabindex="-1", id="main"),
        tag("footer", *_footer(model)),
        tag(
            "script", Markup(json_island(json.dumps(island, ensure_ascii=True, separators=(",", ":")))), type="application/json", id="data"
        ),
        tag("script", Markup(asset("page.js"))),
    )
    return f"<!DOCTYPE html>\n{tag('html', head, body, lang='en').text}\n"


def _nearest(rows: list[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """At most so many rows: the pivot and what an answer names first, then those nearest to it."""
    if len(rows) <= most:
        return rows
    centre = next((at for at, row in enumerate(rows) if "pivot" in row["what"]), 0)
    ordered = sorted(range(len(rows)), key=lambda at: (not rows[at]["what"], abs(at - centre)))
    kept = set(ordered[:most])
    return [row for at, row in enumerate(rows) if at in kept]


def _footer(model: Mapping[str, Any]) -> list[Markup]:
    comparison = model["comparison"]
    return [
        tag(
            "p",
            f"Written {model['written']} by {model['tool']}. What this page says about the runs was read from the stored traces, or "
            "computed from them again, while it was written; the symptom, claims, reasons of filters, exit codes and commands are told as "
            "they were recorded. report.json beside it holds the same in machine-readable form.",
        ),
        tag("p", "Comparison ", tag("code", comparison["id"]), ", answer.json of SHA-256 ", tag("code", comparison["answer_sha256"]), "."),
    ]
