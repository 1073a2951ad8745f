"""The other end of `server`: start programs in it, read what they printed and updated, have traces judged."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
WATCH = "[watch]"  # how lines begin that an inserted print prints
_WORD = re.compile(r"[\w.+-]+|\S")
PRELOADED = ("accelerate", "transformers")


@dataclass(frozen=True)
class Shown:
    """What a run without observation showed, over all ranks.

    Attributes:
        ended: Exit code of each rank.
        lines: What each rank printed, less lines of inserted prints.
        updates: Digest of the parameters after every optimizer step of each rank.
    """

    ended: tuple[int | None, ...]
    lines: tuple[tuple[str, ...], ...]
    updates: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Expected:
    """What several runs of one program have in common: its words and updates, None where the runs disagree (a clock, a race).

    Attributes:
        ended: Exit code of each rank.
        words: Words of what each rank printed, line breaks included.
        updates: As in `Shown`.
    """

    ended: tuple[int | None, ...]
    words: tuple[tuple[str | None, ...], ...]
    updates: tuple[tuple[str | None, ...], ...]

    @classmethod
    def of(cls, runs: Sequence[Shown]) -> Expected:
        """What the runs have in common.

        Raises:
            RuntimeError: They do not even end, or print as many words, alike.
        """
        words = [tuple(map(_words, run.lines)) for run in runs]
        updates = [run.updates for run in runs]
        shapes = {(run.ended, tuple(map(len, printed)), tuple(map(len, run.updates))) for run, printed in zip(runs, words, strict=True)}
        if len(shapes) != 1:
            raise RuntimeError(f"runs of one program end, print or update differently: {shapes}")
        return cls(runs[0].ended, _common(words), _common(updates))

    def matches(self, run: Shown, *, longer: bool = False) -> bool:
        """Whether a run shows this; if ``longer``, whether it shows this and then more."""
        printed = tuple(map(_words, run.lines))
        lengths = [tuple(map(len, part)) for part in (printed, run.updates, self.words, self.updates)]
        if longer == (lengths[:2] == lengths[2:]) or run.ended != self.ended:
            return False
        return all(_begins(new, old) for new, old in zip((*printed, *run.updates), (*self.words, *self.updates), strict=True))


def _words(lines: Sequence[str]) -> tuple[str, ...]:
    return tuple(word for line in lines for word in (*_WORD.findall(line), "\n"))


def _common(runs: Sequence[tuple[tuple[str, ...], ...]]) -> tuple[tuple[str | None, ...], ...]:
    """Per rank, item by item, what all runs have; None elsewhere."""
    return tuple(
        tuple(items[0] if len(set(items)) == 1 else None for items in zip(*ranks, strict=True)) for ranks in zip(*runs, strict=True)
    )


def _begins(new: Sequence[str], old: Sequence[str | None]) -> bool:
    return len(new) >= len(old) and all(mine in (None, theirs) for mine, theirs in zip(old, new[: len(old)], strict=True))


class Runner:
    """A server process and a folder for its reports."""

    def __init__(self, process: subprocess.Popen[str], scratch: Path, mode: str) -> None:
        self._process, self._scratch, self._mode = process, scratch, mode
        self._count = 0

    def bare(self, folder: Path, case: dict[str, Any], timeout_s: float = 60) -> Shown:
        """Run a program without observing it."""
        report, codes = self._train(folder, case, None, timeout_s)
        ranks = range(len(codes))
        printed = [report.with_suffix(f".{rank}.out").read_text().splitlines() for rank in ranks]
        updates = [self._updates(report.with_suffix(f".{rank}.json")) for rank in ranks]
        return Shown(tuple(codes), tuple(tuple(line for line in lines if not line.startswith(WATCH)) for lines in printed), tuple(updates))

    def observed(self, folder: Path, case: dict[str, Any], trace: Path, timeout_s: float = 180) -> list[int | None]:
        """Run a program observed; its trace goes to the absent folder ``trace``."""
        _, codes = self._train(folder, case, trace, timeout_s)
        return codes

    def judge(self, reference: Path, suspect: Path, timeout_s: float = 120) -> dict[str, Any]:
        """The answer over two traces."""
        report = self._report()
        codes = self._ask(
            {"do": "judge", "reference": str(reference), "suspect": str(suspect), "report": str(report), "timeout_s": timeout_s}
        )
        if codes != [0]:
            raise RuntimeError(f"judging {reference} and {suspect} ended with {codes}; see the output above")
        answer: dict[str, Any] = json.loads(report.read_text())
        return answer

    @staticmethod
    def _updates(path: Path) -> tuple[str, ...]:
        return tuple(json.loads(path.read_text())) if path.exists() else ("no report",)

    def _report(self) -> Path:
        self._count += 1
        return self._scratch / f"report-{self._count}"

    def _train(self, folder: Path, case: dict[str, Any], trace: Path | None, timeout_s: float) -> tuple[Path, list[int | None]]:
        report = self._report()
        job = {
            "do": "train",
            "folder": str(folder),
            "launch": case["launch"],
            "trace": None if trace is None else str(trace),
            "report": str(report),
            "ranks": int(case["launch"][2]) if case["launch"][0] == "torchrun" else 1,
            "mode": self._mode,
            "timeout_s": timeout_s,
            "preload": [name for name in PRELOADED if any(need.startswith(name) for need in case.get("needs") or ())],
        }
        return report, self._ask(job)

    def _ask(self, job: dict[str, Any]) -> list[int | None]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        reply = self._process.stdout.readline()
        if not reply:
            raise RuntimeError(f"the server ended with {self._process.wait()}")
        codes: list[int | None] = json.loads(reply)["codes"]
        return codes


@contextlib.contextmanager
def running(scratch: Path, mode: str = "verify", python: Sequence[str] = (sys.executable,)) -> Iterator[Runner]:
    """A server for the time of the block.

    Args:
        scratch: Folder for reports; exists.
        mode: Capture mode of observed runs.
        python: How to start the interpreter that has torch.
    """
    process = subprocess.Popen(
        [*python, "-m", "tests.variants.server"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY
    )
    try:
        yield Runner(process, scratch, mode)
    finally:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.close()
        process.wait()
        process.stdout.close()
