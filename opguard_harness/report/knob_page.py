"""`explain knobs`: the settings that ``--deterministic`` applies, each with its value, why, and where that is documented."""

from __future__ import annotations

import textwrap

from opguard_core.contract.knobs import KNOBS

TOPIC = "knobs"
DESCRIPTION = "The settings that --deterministic applies."
_WIDTH = 100
_WHEN = {"launch": "in the environment, unless it is set there already", "rank": "in each rank, right after torch is imported"}


def knob_page() -> str:
    """The page, as Markdown."""
    lines = [
        "# Knobs",
        "",
        *textwrap.wrap(
            "`--deterministic` applies these settings in both programs and records each before and after; without it nothing is "
            "applied. The answer's `determinism` says of each what became of it. None changes precision.",
            _WIDTH,
        ),
    ]
    for knob in KNOBS:
        lines += ["", f"## {knob.name} = {knob.value}", "", *textwrap.wrap(knob.why, _WIDTH)]
        lines += ["", f"Set {_WHEN[knob.when]}. Source: {knob.source}."]
    return "\n".join(lines)
