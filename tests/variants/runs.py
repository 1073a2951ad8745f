"""The other end of `server`: start programs in it, read what they printed and updated, have traces judged."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
WATCH = "[watch]"  # how lines begin that an inserted print prints
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

    def continues(self, other: Shown) -> bool:
        """Whether this run did what ``other`` did, and then more of the same."""
        longer = sum(map(len, self.updates)) > sum(map(len, other.updates)) or self.lines != other.lines
        return (
            longer
            and self.ended == other.ended
            and all(mine[: len(theirs)] == theirs for mine, theirs in zip(self.lines, other.lines, strict=True))
            and all(mine[: len(theirs)] == theirs for mine, theirs in zip(self.updates, other.updates, strict=True))
        )


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
