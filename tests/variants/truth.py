"""Whether an answer is still the one it was before an edit, told by the edit's own record of where it put what."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from opguard_core.ids import SIDES
from tests.variants.edits.loops import squash
from tests.variants.program import Program, Spot, spots_at

Answer = dict[str, Any]
MOST_EDITS = 6  # of one program, one after the other


@dataclass
class Edited:
    """What became of one side.

    Attributes:
        before: Where its statements were.
        after: Where they are now.
        program: What the edits recorded.
    """

    before: list[Spot]
    after: list[Spot]
    program: Program = field(repr=False)

    def canonical(self, text: str) -> str:
        """An expression of the edited side, written with the names and subexpressions it had before."""
        text = " ".join(text.split())
        for _ in range(MOST_EDITS):
            before, text = text, self.program.headers.get(text, text)
            if "for " in text:  # a header is no expression: word by word
                text = re.sub(r"\b\w+_v\d+\w*\b", lambda found: self.program.names.get(found[0], found[0]), text)
            if text == before:
                break
        return written(text, _Back(self.program))


class _Back(ast.NodeTransformer):
    """Undoes what edits recorded, the latest first: an earlier edit's names may have been changed by a later one."""

    def __init__(self, program: Program) -> None:
        self._program = program

    def _name(self, name: str) -> str:
        for _ in range(MOST_EDITS):
            name = self._program.names.get(name, name)
        return name

    def visit_Name(self, node: ast.Name) -> ast.AST:
        name = self._name(node.id)
        inlined = self._program.inlined.get(name)
        return ast.Name(name, ast.Load()) if inlined is None else self._expression(inlined)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        return ast.Attribute(node.value, self._name(node.attr), ast.Load())

    def visit_Call(self, node: ast.Call) -> ast.AST:
        inlined = self._program.inlined.get(f"{self._name(node.func.id)}()") if isinstance(node.func, ast.Name) else None
        return self.generic_visit(node) if inlined is None else self._expression(inlined)

    def _expression(self, text: str) -> ast.AST:
        made: ast.AST = self.visit(ast.parse(f"({text})", mode="eval").body)
        return made


def written(text: str, change: ast.NodeTransformer | None = None) -> str:
    """A piece of source in one form: quotes, parentheses, spaces and lines as Python itself would write them."""
    try:
        tree = ast.parse(text.strip())
    except (SyntaxError, ValueError):
        return squash(text)
    return squash(ast.unparse(tree if change is None else change.visit(tree)))


def moved(before: Answer, after: Answer, edited: dict[str, Edited]) -> list[str]:
    """What of verdict and pivot is not what it was; empty if all of it is.

    Args:
        before: Answer over the pair as it was.
        after: Answer over the pair with one or both sides edited.
        edited: The edited sides.
    """
    if before["verdict"] != after["verdict"]:
        longer = any(side.program.steps_added for side in edited.values())
        reasons = {reason["slug"] for reason in after["reasons"]}
        if longer and before["verdict"] == "identical" and after["verdict"] == "inconclusive" and reasons == {"unequal-length"}:
            return []
        return [f"verdict {before['verdict']} -> {after['verdict']} {sorted(reasons)}"]
    old, new = before["pivot"], after["pivot"]
    if old is None or new is None:
        return []
    found = [f"{key} {old[key]} -> {new[key]}" for key in ("rank", "step", "phase", "origin") if old[key] != new[key]]
    return found + [f"{side} {fault}" for side in SIDES if (fault := _place_moved(old[side], new[side], edited.get(side)))]


def _place_moved(old: Answer | None, new: Answer | None, edited: Edited | None) -> str:
    if old is None or new is None:
        return "" if old is new else f"{_short(old)} -> {_short(new)}"
    if edited is None or not any(spot.file == old["file"] for spot in edited.before):
        same = (old["file"], old["line"], old["text"]) == (new["file"], new["line"], new["text"])
        return "" if same else f"{_short(old)} -> {_short(new)}"
    wanted = {spot.tag for spot in spots_at(edited.before, old["file"], old["line"])}
    there = {spot.tag for spot in spots_at(edited.after, new["file"], new["line"])}
    if not wanted & there:
        return f"statement {_short(old)} -> {_short(new)}"
    if written(old["text"]) != edited.canonical(new["text"]):
        return f"expression {_short(old)} -> {_short(new)}"
    return ""


def _short(place: Answer | None) -> str:
    return "nothing" if place is None else f"{place['file']}:{place['line']} {' '.join(place['text'].split())[:60]!r}"


def mapped_case(case: dict[str, Any], edited: dict[str, Edited]) -> dict[str, Any]:
    """The case with its true places where the edits have put them, for the cases' own judge."""
    mapped = {**case, "expected": dict(case["expected"])}
    suspect, reference = edited.get("suspect"), edited.get("reference")
    if suspect is not None:
        places = [case["expected"], *case.get("also_acceptable", [])] if "file" in case["expected"] else []
        mapped["also_acceptable"] = [place for known in places for place in _mapped(known, suspect)]
        if "benign_difference" in case["expected"]:
            mapped["expected"]["benign_difference"] = next(iter(_mapped(case["expected"]["benign_difference"], suspect)), {})
        if places:
            mapped["expected"].update(file="", line=None, line_text="")
    if reference is not None and "reference_acceptable" in case:
        mapped["reference_acceptable"] = [place for known in case["reference_acceptable"] for place in _mapped(known, reference)]
    return mapped


def _mapped(place: dict[str, Any], edited: Edited) -> Iterable[dict[str, Any]]:
    """A place for every line on which its statement is now."""
    text = squash(place.get("line_text") or "")
    known = [
        spot.tag
        for spot in edited.before
        if spot.file == place["file"] and ((text and text in squash(spot.text)) or spot.first <= (place.get("line") or 0) <= spot.last)
    ]
    forward = place.get("forward_line_text")
    there = [spot for spot in edited.before if forward and squash(forward) in squash(spot.text)]
    forwards = {spot.tag for spot in there}
    for spot in edited.after:
        if spot.tag in known:
            yield from ({**place, "file": spot.file, "line": line, "line_text": spot.text} for line in range(spot.first, spot.last + 1))
        if spot.tag in forwards:
            yield {**place, "file": spot.file, "line": None, "line_text": "", "forward_line_text": spot.text}
