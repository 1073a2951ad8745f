"""Where an event is in the source: the expression a reader should open.

The place is the innermost frame of the user's own code, or a deeper frame of a library whose file is not the same on both
sides. A file that only one side happened to execute is the user's concern only if its distribution is known to differ.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from opguard_core.certify.generated import GENERATED, NO_FILE
from opguard_core.certify.verdict import Place
from opguard_core.trace.reader import RankTrace
from opguard_core.trace.schema import FrameRow

_FOREIGN = ("library", "torch")


def distribution_of(file: str) -> str:
    """Distribution a library file belongs to, as the first folder of its path."""
    parts = [part for part in file.split("/") if part]
    return parts[0] if parts else file


@dataclass
class ChangedFiles:
    """Which library files differ between the sides.

    Attributes:
        reference: Source digest by file, of the reference's library frames.
        suspect: The same of the suspect.
    """

    reference: dict[str, set[str]] = field(default_factory=dict)
    suspect: dict[str, set[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, reference: RankTrace, suspect: RankTrace) -> ChangedFiles:
        """Collect from the frames of one rank of each side."""
        return cls(_digests(reference), _digests(suspect))

    @cached_property
    def changed(self) -> frozenset[str]:
        """Files whose text differs, and files only one side has in a distribution that differs."""
        both = self.reference.keys() & self.suspect.keys()
        different = {file for file in both if self.reference[file] != self.suspect[file]}
        distributions = {distribution_of(file) for file in different}
        lone = self.reference.keys() ^ self.suspect.keys()
        return frozenset(different | {file for file in lone if distribution_of(file) in distributions})


def _digests(trace: RankTrace) -> dict[str, set[str]]:
    columns = trace.frames.columns
    categories = trace.frames.strings["category"]
    found: dict[str, set[str]] = {}
    for file, category, source in zip(columns["file"], columns["category"], columns["source"], strict=True):
        if source and categories[int(category)] in _FOREIGN and not str(file).startswith((GENERATED, NO_FILE)):
            found.setdefault(str(file), set()).add(str(source))
    return found


@dataclass(eq=False)
class Places:
    """Places of one rank of one side.

    Attributes:
        trace: The rank's trace.
        changed: Library files that differ between the sides.
    """

    trace: RankTrace
    changed: frozenset[str]

    def frames(self, stack: int) -> list[FrameRow]:
        """Frames of a stack, outermost first; empty for -1."""
        return [self.trace.frames[int(frame)] for frame in self.trace.stacks[stack]] if stack >= 0 else []

    def place(self, stack: int, user_frame: int, library_frame: int) -> Place | None:
        """Place of an event.

        Args:
            stack: Row of the stacks, -1 when unknown.
            user_frame: Innermost user frame, -1 when none.
            library_frame: Innermost other frame, -1 when none.
        """
        frame = self.frame(stack, user_frame, library_frame)
        return None if frame is None else place_of(frame)

    def frame(self, stack: int, user_frame: int, library_frame: int) -> FrameRow | None:
        """The frame whose place that is; arguments as `place`."""
        frames = self.frames(stack) or [self.trace.frames[frame] for frame in (user_frame, library_frame) if frame >= 0]
        for frame in reversed(frames):
            if frame.category == "user" or (frame.category in _FOREIGN and frame.file in self.changed):
                return frame
        return frames[-1] if frames else None

    def stack(self, stack: int) -> list[Place] | None:
        """All places of a stack, outermost first; None when unknown."""
        return [place_of(frame) for frame in self.frames(stack)] if stack >= 0 else None


def place_of(frame: FrameRow) -> Place:
    """The place of one frame."""
    return Place(
        frame.file, frame.line, max(frame.end_line, frame.line), frame.column, frame.end_column, frame.function, frame.text, frame.statement
    )
