"""The result: what differs between two tensors, as plain data of bounded size."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Damage:
    """What differs.

    Attributes:
        likely: Likely class, one of ``likely.CLASSES``.
        rule: The rule that led there, with its numbers.
        alternatives: Classes that the same bytes would fit, too.
        dtypes: Of the reference and the suspect.
        shapes: Likewise.
        elements: Elements of the reference.
        differing: Elements whose bytes differ; None where elements do not correspond.
        first: The first of them: index, both values, both codes, distance.
        axes: Of each axis how many of its indices are touched, and which.
        stride: First flat position, step and count, if one step leads through all that differ.
        block: Whether they are all elements of the touched indices.
        distance: Largest distance and its histogram: ULP for floats, the absolute difference for integers.
        bits: Which bits differ, how often, and how many elements differ in a single one.
        special: NaN and infinite values that appeared or vanished, signs that differ.
        size: Largest difference, its root mean square relative to the reference, correlation: of the elements that differ.
        order: The permutation, if it is one.
        relations: What holds for all elements: a factor, a shift, a cast.
        notes: What could not be looked at, and why.
    """

    likely: str
    rule: str
    dtypes: tuple[str, str]
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    elements: int
    differing: int | None
    alternatives: tuple[str, ...] = ()
    first: list[dict[str, Any]] = field(default_factory=list)
    axes: list[dict[str, Any]] = field(default_factory=list)
    stride: dict[str, int] | None = None
    block: bool = False
    distance: dict[str, Any] = field(default_factory=dict)
    bits: dict[str, Any] = field(default_factory=dict)
    special: dict[str, int] = field(default_factory=dict)
    size: dict[str, float] = field(default_factory=dict)
    order: dict[str, Any] | None = None
    relations: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def share(self) -> float | None:
        """Share of the elements that differ."""
        return None if self.differing is None or not self.elements else self.differing / self.elements

    def as_dict(self) -> dict[str, Any]:
        """Plain form for JSON, without what says nothing; some kB at most."""
        whole = {**asdict(self), "share": self.share}
        return {name: value for name, value in whole.items() if value is not None and value is not False and value not in ([], {}, ())}

    def brief(self) -> dict[str, Any]:
        """The few facts that a short answer has room for."""
        facts = {
            "class": self.likely,
            "rule": self.rule,
            "alternatives": list(self.alternatives),
            "differing": self.differing,
            "elements": self.elements,
            f"max_{self.distance.get('unit', '')}": self.distance.get("max"),
        }
        return {name: value for name, value in facts.items() if value not in (None, [])}
