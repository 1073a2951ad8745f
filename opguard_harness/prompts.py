"""The texts of the folder prompts/: pages of `explain` for people, prompts with arguments for agents.

A text begins with a few lines between two lines of dashes:

    ---
    title: What a list shows
    description: One sentence.
    argument NAME: What it means.
    argument NAME (optional): What it means.
    ---

What follows is Markdown without placeholders: what an agent was given is put in front of it, quoted, so that no value can
change the text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from opguard_harness.errors import InvalidArguments, PromptInvalid, UsageError
from opguard_harness.shipped import shipped_folder

VALUE_LIMIT_CHARS = 2_000
_FENCE = "---\n"
_ARGUMENT = re.compile(r"argument (?P<name>[a-z_]+)(?P<optional> \(optional\))?")


@dataclass(frozen=True)
class PromptArgument:
    """What an agent may say with a prompt."""

    name: str
    text: str
    required: bool


@dataclass(frozen=True)
class Prompt:
    """One text.

    Attributes:
        name: That of its file.
        title: What a person reads in a list.
        description: One sentence.
        arguments: What may be said with it.
        body: The text, Markdown, without the lines in front.
    """

    name: str
    title: str
    description: str
    arguments: tuple[PromptArgument, ...]
    body: str

    def render(self, values: Mapping[str, str]) -> str:
        """The text for an agent that said ``values``; empty ones count as left out.

        Raises:
            InvalidArguments: A name is unknown, a required one is missing, or a value is too long.
        """
        known = {argument.name for argument in self.arguments}
        hint = f"Arguments of the prompt: {', '.join(argument.name for argument in self.arguments) or 'none'}."
        given = {name: value for name, value in values.items() if value.strip()}
        for name in values:
            if name not in known:
                raise InvalidArguments(f"{name!r} is no argument of the prompt {self.name}.", hint=hint)
        for argument in self.arguments:
            if argument.required and argument.name not in given:
                raise InvalidArguments(f"The prompt {self.name} needs {argument.name}: {argument.text}", hint=hint)
            if len(given.get(argument.name, "")) > VALUE_LIMIT_CHARS:
                raise InvalidArguments(
                    f"The prompt {self.name} takes at most {VALUE_LIMIT_CHARS} characters for {argument.name}.", hint=hint
                )
        if not given:
            return self.body
        said = [f"- {argument.name}: {json.dumps(given[argument.name])}" for argument in self.arguments if argument.name in given]
        return "\n".join(["Given:", *said, "", self.body])


def prompts() -> tuple[Prompt, ...]:
    """All texts, by name."""
    return tuple(parse(path.stem, path.read_text("utf-8")) for path in sorted(shipped_folder("prompts").glob("*.md")))


def find_prompt(name: str) -> Prompt:
    """One text.

    Raises:
        UsageError: There is none of that name.
    """
    for prompt in prompts():
        if prompt.name == name:
            return prompt
    raise UsageError(f"There is no text {name!r}.", hint=f"Texts: {', '.join(prompt.name for prompt in prompts())}.")


def parse(name: str, text: str) -> Prompt:
    """Take a file apart.

    Raises:
        PromptInvalid: The lines in front are not as the module says; the message has the line.
    """
    if not text.startswith(_FENCE) or f"\n{_FENCE}" not in text:
        raise PromptInvalid(f"The text {name} does not begin with lines between two lines of dashes.")
    head, _, body = text[len(_FENCE) :].partition(f"\n{_FENCE}")
    said: dict[str, str] = {}
    arguments = []
    for line in head.splitlines():
        key, colon, value = line.partition(": ")
        argument = _ARGUMENT.fullmatch(key)
        if colon and argument:
            arguments.append(PromptArgument(argument["name"], value.strip(), not argument["optional"]))
        elif colon and key in ("title", "description") and key not in said:
            said[key] = value.strip()
        else:
            raise PromptInvalid(f"The text {name} has a line that says nothing to us: {line!r}.")
    if set(said) != {"title", "description"}:
        raise PromptInvalid(f"The text {name} lacks a title or a description.")
    return Prompt(name, said["title"], said["description"], tuple(arguments), body.strip() + "\n")
