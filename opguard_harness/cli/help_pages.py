"""`explain`: the longer texts of the folder prompts/, which agents get as prompts as well."""

from __future__ import annotations

import typer

from opguard_harness.cli.outcome import Outcome

HELP = "Print a longer text: how to investigate, how to read a verdict, what --deterministic sets."


def explain(topic: str = typer.Argument("", metavar="[TOPIC]", help="Without one, the topics are listed.")) -> Outcome:
    """Print one text, or the list of texts."""
    from opguard_harness.errors import UsageError
    from opguard_harness.report.knob_page import TOPIC, knob_page
    from opguard_harness.shipped import prompt_text, prompt_topics

    topics = sorted([*prompt_topics(), TOPIC])
    if not topic:
        return Outcome("\n".join(topics))
    if topic not in topics:
        raise UsageError(f"There is no text {topic!r}.", hint=f"Topics: {', '.join(topics)}.")
    return Outcome(knob_page() if topic == TOPIC else prompt_text(topic).rstrip("\n"))
