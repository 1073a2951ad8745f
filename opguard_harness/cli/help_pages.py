"""`explain`: the longer texts of the folder prompts/, which agents get as prompts as well."""

from __future__ import annotations

import typer

from opguard_harness.cli.outcome import Outcome

HELP = "Print a longer text: how to investigate, how to read a verdict, what --deterministic sets."


def explain(topic: str = typer.Argument("", metavar="[TOPIC]", help="Without one, the topics are listed.")) -> Outcome:
    """Print one text, or the list of texts."""
    from opguard_harness.errors import UsageError
    from opguard_harness.prompts import prompts
    from opguard_harness.report.knob_page import DESCRIPTION, TOPIC, knob_page

    texts = {prompt.name: prompt for prompt in prompts()}
    described = {**{name: prompt.description for name, prompt in texts.items()}, TOPIC: DESCRIPTION}
    if not topic:
        return Outcome("\n".join(f"{name:<16} {described[name]}" for name in sorted(described)))
    if topic not in described:
        raise UsageError(f"There is no text {topic!r}.", hint=f"Topics: {', '.join(sorted(described))}.")
    return Outcome(knob_page() if topic == TOPIC else texts[topic].body.rstrip("\n"))
