"""Everything that is still to be measured on a card, the most valuable first, within one limit of time.

    python3 -m tests.gpu.all --seconds 540 [--only PART ...] [--skip PART ...] [--out FILE] [--list] [--dry-run]

Each part is one of the scripts beside this one in a process of its own; its rows go to `--out` as soon as they are known, so that a run
that is cut still counts, and a later run goes on with `--only` or `--skip`. A part gets its own limit or what is left, and is ended with
all its processes when that is over. One row a part says at the end of it how it went. ``--dry-run`` goes through all of them as far as a
machine without a card can. Exit code 0 only if every part that was begun held.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.gpu.rows import Rows

REPOSITORY = Path(__file__).resolve().parents[2]
COLUMNS = ("part", "seconds", "how it went", "said last")
LEAST_S = 15.0  # with less left nothing is begun
END_S = 5.0  # to end by itself after SIGTERM
ON_CPU = ("--device", "cpu", "--tiny", "--steps", "2")


@dataclass(frozen=True)
class Part:
    """One script.

    Attributes:
        name: What `--only` calls it.
        module: What is run; a part whose module is not there is left out.
        words: Its options on a card.
        seconds: Most that it may take there.
        dry: Its options without a card.
        says: What it measures, for `--list`.
        own_limit: Option by which it is told its limit, so that it ends by itself; "" if it has none.
        cards: Cards that it needs.
        table: Whether it writes rows.
    """

    name: str
    module: str
    words: tuple[str, ...]
    seconds: float
    dry: tuple[str, ...]
    says: str
    own_limit: str = ""
    cards: int = 1
    table: bool = True


def _steps(part: str, seconds: float) -> Part:
    dry = ("--part", part, *ON_CPU, "--rounds", "1", "--only", "dispatch-full")  # of part a; the others need the observer built
    return Part(f"step-time-{part}", "tests.gpu.step_time", ("--part", part), seconds, dry, f"step-time ratio, part {part}", "--seconds")


PARTS = (
    _steps("a", 150.0),
    _steps("b", 110.0),
    _steps("c", 120.0),
    Part(
        "step-time-compiled",
        "tests.gpu.step_time",
        ("--part", "a", "--compiled", "kernels", "--only", "native-trusted", "native-full"),
        150.0,
        ("--part", "a", "--compiled", "kernels", *ON_CPU, "--rounds", "1", "--only", "dispatch-full"),
        "step-time ratio of a compiled model, part a",
        "--seconds",
    ),
    Part(
        "device-time",
        "tests.gpu.device_time",
        (),
        60.0,
        ("--device", "cpu", "--tiny", "--modes", "full"),
        "device time that digests add to a step, and where it goes",
    ),
    Part(
        "syncs",
        "tests.gpu.syncs",
        ("--engines", "native"),
        120.0,
        ("--engines", "dispatch", "--modes", "full", *ON_CPU),
        "host synchronisations added over 50 steps",
    ),
    Part("kernels", "tests.gpu.kernels", (), 75.0, ("--dry-run",), "each kernel against a device copy", "--seconds"),
    Part(
        "coverage",
        "tests.gpu.coverage",
        ("--only", "graph-replay", "compiled", "triton", "cublas-workspace", "conv-autotune", "triton-atomics", "steps"),
        150.0,
        ("--dry-run", "--only", "gpt-eager"),
        "sections of the launch shim that were rewritten, its programs, and what it costs a step",
    ),
    Part(
        "must-find",
        "tests.gpu.must_find",
        ("--jobs", "6"),
        200.0,
        ("--device", "cpu", "--only", "norm-cast", "--modes", "full"),
        "programs with a known fault, through `compare`",
    ),
    Part("outside", "tests.gpu.outside", (), 120.0, ("--dry-run",), "calls that the dispatcher does not see"),
    Part(
        "compiled",
        "pytest",
        ("-q", "tests/gpu/test_compiled.py"),
        120.0,
        ("-q", "--collect-only", "tests/gpu/test_compiled.py"),
        "compiled regions, as tests",
        table=False,
    ),
    Part("cupti", "tests.gpu.cupti", (), 60.0, ("--dry-run",), "our own subscriber of CUPTI beside shim and profiler"),
    Part(
        "ranks",
        "tests.gpu.ranks",
        (),
        300.0,
        ("--dry-run",),
        "DDP and FSDP2 over NCCL: what has no boundary, whether `identical` is given, planted faults",
        cards=2,
    ),
    Part("launch", "tests.gpu.launch", (), 90.0, ("--dry-run",), "host time of a probe, replays"),
    Part("smoke", "tests.gpu.capture_smoke", (), 90.0, ("--device", "cpu", "--modes", "full"), "each mode agrees with itself", table=False),
)


def chosen(options: argparse.Namespace) -> list[Part]:
    """The parts that were asked for, of those that are here."""
    names = {part.name for part in PARTS}
    if unknown := {*options.only, *options.skip} - names:
        raise SystemExit(f"There is no part {', '.join(sorted(unknown))}; there are {', '.join(part.name for part in PARTS)}.")
    wanted = [part for part in PARTS if (not options.only or part.name in options.only) and part.name not in options.skip]
    return [part for part in wanted if importlib.util.find_spec(part.module) is not None]


def command(part: Part, seconds: float, options: argparse.Namespace) -> list[str]:
    """The command line of a part that has so many seconds."""
    words = [sys.executable, "-m", part.module, *(part.dry if options.dry_run else part.words)]
    if part.own_limit:
        words += [part.own_limit, str(round(max(LEAST_S, seconds - END_S)))]
    if options.out is not None and part.table:
        words += ["--out", str(options.out.absolute())]
    return words


def run(part: Part, seconds: float, options: argparse.Namespace) -> tuple[str, float, str]:
    """Run one part; how it went, its seconds, and the last line that it said."""
    begun = time.monotonic()
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    with tempfile.TemporaryFile() as said:
        child = subprocess.Popen(
            command(part, seconds, options), cwd=REPOSITORY, env=environment, stdout=said, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code = child.wait(seconds)
            how = "held" if code == 0 else f"ended with {code}"
        except subprocess.TimeoutExpired:
            how = f"cut after {seconds:.0f} s"
        _end(child)
        said.seek(0)
        text = said.read().decode("utf-8", "replace")
    if options.log is not None:
        options.log.mkdir(parents=True, exist_ok=True)
        (options.log / f"{part.name}.txt").write_text(text, "utf-8")
    lines = [line for line in text.splitlines() if line.strip()]
    return how, time.monotonic() - begun, lines[-1][:200] if lines else "nothing"


def _end(child: subprocess.Popen[bytes]) -> None:
    """End a part with all its processes."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(END_S)


def cards() -> int:
    """How many cards there are; no CUDA is initialised in this process."""
    asked = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False) if _has("nvidia-smi") else None
    return 0 if asked is None else asked.stdout.count("GPU ")


def _has(program: str) -> bool:
    return any(Path(folder, program).exists() for folder in os.environ.get("PATH", "").split(os.pathsep))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    out = Path(os.environ["OUT"]) if os.environ.get("OUT") else None
    parser.add_argument("--seconds", type=float, default=540.0, help="Of all parts together.")
    parser.add_argument("--only", nargs="+", default=[], metavar="PART")
    parser.add_argument("--skip", nargs="+", default=[], metavar="PART")
    parser.add_argument("--out", type=Path, default=out / "rows.md" if out else None, help="Rows are appended to this file.")
    parser.add_argument("--log", type=Path, default=out / "logs" if out else None, help="Folder for all that the parts said.")
    parser.add_argument("--list", action="store_true", help="Say what there is, and run nothing.")
    parser.add_argument("--dry-run", action="store_true")
    options = parser.parse_args(argv)
    parts = chosen(options)
    if options.list:
        for part in parts:
            print(f"{part.name:14} {part.seconds:4.0f} s  {part.says}")
        return 0
    until, rows, held, found = time.monotonic() + options.seconds, Rows(options.out), True, cards()
    told: list[tuple[object, ...]] = []
    for part in parts:
        left = until - time.monotonic()
        if part.cards > found and part.cards > 1 and not options.dry_run:
            told.append((part.name, None, f"not run: it needs {part.cards} cards, here are {found}", None))
        elif left < LEAST_S:
            told.append((part.name, None, "not run: no time was left", None))
        else:
            rows.line(f"\n<!-- {part.name} -->")
            how, seconds, last = run(part, min(left, part.seconds), options)
            held &= how == "held"
            told.append((part.name, seconds, how, last))
            rows.line(f"<!-- {part.name}: {how}, {seconds:.0f} s -->")
    rows.head("What ran", f"Limit {options.seconds:.0f} s.", COLUMNS)
    for row in told:
        rows.row(row)
    return 0 if held else 1


if __name__ == "__main__":
    raise SystemExit(main())
