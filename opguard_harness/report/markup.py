"""HTML built from elements: text is escaped by construction, and what is no text says so by its type."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from opguard_harness.report.escape import html, html_attribute

_VOID = {"meta": ">", "br": ">", "rect": "/>"}  # an SVG element closes itself
_NAMES = {"class_": "class", "for_": "for"}


@dataclass(frozen=True)
class Markup:
    """HTML that we wrote."""

    text: str


Child = str | Markup | None | Iterable["Child"]


def tag(name: str, /, *children: Child, **attributes: str | bool | int | None) -> Markup:
    """One element.

    Args:
        name: Of ours.
        children: Texts, which are escaped, and markup; None and nested lists are allowed.
        attributes: By name, ``class_`` for class and ``aria_label`` for aria-label; False and None leave one out.
    """
    told = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in _VOID:
        return Markup(f"<{name}{told}{_VOID[name]}")
    return Markup(f"<{name}{told}>{join(children).text}</{name}>")


def join(children: Iterable[Child]) -> Markup:
    """Children one after the other."""
    return Markup("".join(_child(child) for child in children))


def _child(child: Child) -> str:
    if child is None:
        return ""
    if isinstance(child, Markup):
        return child.text
    return html(child) if isinstance(child, str) else join(child).text


def _attribute(key: str, value: str | bool | int | None) -> str:
    if value is None or value is False:
        return ""
    name = _NAMES.get(key, key.replace("_", "-"))
    return f" {name}" if value is True else f' {name}="{html_attribute(str(value))}"'
