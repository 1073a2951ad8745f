"""Which kernels the launch shim sees and to which boundary they belong, against torch.profiler; what the shim costs; what must be found.

    python3 -m tests.gpu.coverage [--only SECTION ...] [--jobs 4] [--out FILE] [--answers DIR] [--dry-run]

Four minutes; each row is written as soon as it is known, each section runs in a process of its own. Sections: those of `coverage_work`,
`cost` (an empty launch from C), `steps` (a training step), and the programs of `programs_coverage` by their names. The kernels of the
profiler are those of the program: the fingerprint's own are left out by their names. ``--dry-run`` does what a machine without a card
can: a fake driver counts in place of the profiler, the programs run on the CPU. Exit code 0 only if all that is asked of the shim held.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from opguard_core import builds
from opguard_core.intercept import shim
from tests.gpu import must_find
from tests.gpu.coverage_work import SECTIONS
from tests.gpu.rows import Rows, where

PROGRAMS = Path(__file__).with_name("programs_coverage")
REPOSITORY = Path(__file__).resolve().parents[2]
FAKES = REPOSITORY / "tests" / "support" / "fake_launches"
COLUMNS = (
    "section",
    "kernels (profiler)",
    "seen",
    "with a boundary",
    "by device time",
    "other work",
    "engine, lost, escaped",
    "not seen, or no boundary",
)
MAX_KERNELS = 6
SEEN_SHARE = 0.99  # the issue of all work: of the profiler's kernels, by count
COST_BUDGET_US = 0.5
SHOWN = 6


def _environment(options: argparse.Namespace, *, preload: bool) -> dict[str, str]:
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(REPOSITORY), *filter(None, [environment.get("PYTHONPATH", "")])])
    if options.fakes is not None:
        environment["LD_LIBRARY_PATH"] = f"{options.fakes}:{environment.get('LD_LIBRARY_PATH', '')}"
    return shim.preloaded(environment, options.shim) if preload else environment


def child(section: str, options: argparse.Namespace, *, preload: bool = True, repetitions: int = 3) -> Any:
    """What a section's process printed, or `{"error": ...}`."""
    with tempfile.TemporaryDirectory(prefix="opguard-coverage-", dir=options.scratch) as scratch:
        command = [sys.executable, "-m", "tests.gpu.coverage_child", section, "--folder", scratch, "--repetitions", str(repetitions)]
        command += ["--engine", options.engine, *(["--fake", str(options.fakes)] if options.fakes else [])]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, env=_environment(options, preload=preload), check=False, timeout=options.timeout
            )
        except subprocess.TimeoutExpired:
            return {"error": f"longer than {options.timeout:.0f} s"}
    try:
        return json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        return {"error": (done.stderr.strip().splitlines() or ["no output"])[-1]}


def tell(rows: Rows, section: str, answers: Any, options: argparse.Namespace) -> bool:
    """The rows of one section; whether enough was seen."""
    if isinstance(answers, dict):
        rows.row((section, f"ERROR: {answers['error'][:300]}"))
        return False
    return all([_row(rows, answer, dry_run=options.dry_run) for answer in answers])  # noqa: C419  every row is written


def _row(rows: Rows, answer: Mapping[str, Any], *, dry_run: bool) -> bool:
    wanted, attributed, apart = (Counter(answer[key]) for key in ("profiler", "attributed", "apart"))
    if dry_run:  # the fake driver counts, but tells no names
        wanted, times = attributed + apart, Counter(dict.fromkeys(attributed + apart, 1))
        whole = sum(answer["profiler"].values()) == sum(wanted.values())
    else:
        times, whole = Counter(answer["times"]), True
    found = attributed + apart
    num_wanted, num_seen = sum(wanted.values()), sum((wanted & found).values())
    num_bound = sum((wanted & attributed).values())
    whole_ns = sum(times.values())
    bound_ns = sum(times[name] / wanted[name] * min(wanted[name], attributed[name]) for name in wanted)
    launches = answer.get("launches") or {}
    escaped = " ".join([str(launches.get("escaped", "")), *launches.get("gone_past", ())])
    facts = [str(answer.get("engine", "no capture")), str(launches.get("lost", "")), escaped]
    rest = {**answer["other"], **{f"profiler: {name}": count for name, count in answer["rest"].items()}}
    rows.row(
        (
            answer["section"],
            num_wanted,
            _share(num_seen, num_wanted),
            _share(num_bound, num_wanted),
            _share(bound_ns, whole_ns),
            ", ".join(f"{name} {count}" for name, count in rest.items()),
            ", ".join(facts) + (f"; {answer['why']}" if answer.get("why") else ""),
            "; ".join(_named(wanted, attributed, apart)),
        )
    )
    return whole and num_seen >= SEEN_SHARE * num_wanted


def _named(wanted: Counter[str], attributed: Counter[str], apart: Counter[str]) -> Iterator[str]:
    """Kernels that one of both did not see, or that have no boundary: the most frequent ones."""
    for label, names in (
        ("not seen", wanted - (attributed + apart)),
        ("seen alone", (attributed + apart) - wanted),
        ("no boundary", apart & wanted),
    ):
        shown = [f"{name[:90]} x{count}" for name, count in names.most_common(SHOWN)]
        if shown:
            yield f"{label}: {', '.join(shown)}" + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def _share(part: float, whole: float) -> str:
    return f"{part:,.0f} of {whole:,.0f} ({100 * part / whole:.2f} %)" if whole else "none"


def cost(rows: Rows, options: argparse.Namespace) -> bool:
    """Rows of what a launch costs."""
    rows.head(
        "Cost of the shim per launch",
        "Empty kernels launched from C by the driver's cuLaunchKernel, 100 in a row, 60 times each way, ways taking turns. Microseconds.",
        ("way", "median", "least", "more than without"),
    )
    bare, watched = child("cost", options, preload=False), child("cost", options)
    if "error" in bare or "error" in watched:
        rows.row(("ERROR", bare.get("error"), watched.get("error")))
        return False
    base, held = bare["without the shim"]["median"] / 1e3, True
    for way, found in {**bare, **watched}.items():
        more = found["median"] / 1e3 - base
        held &= more <= COST_BUDGET_US or options.dry_run
        rows.row((way, found["median"] / 1e3, found["least"] / 1e3, more))
    return held


def steps(rows: Rows, options: argparse.Namespace) -> bool:
    """Rows of what a training step costs."""
    rows.head(
        "Step time with and without the shim",
        "GPT of part a, forward, backward, fused AdamW; processes take turns, two each. Milliseconds; the ratio is to the mean without it.",
        ("way", "median", "10 to 90 % spread", "ratio"),
    )
    found = [(preload, child("steps", options, preload=preload, repetitions=3 if options.dry_run else 30)) for preload in (False, True) * 2]
    if any("error" in one for _, one in found):
        rows.row(("ERROR", *(one.get("error") for _, one in found)))
        return False
    base = [one["without the shim"]["median"] for preload, one in found if not preload]
    for _, one in found:
        for way, times in one.items():
            rows.row((way, times["median"], times["spread"], times["median"] / (sum(base) / len(base))))
    return True


def must(rows: Rows, options: argparse.Namespace, cases: Sequence[dict[str, Any]]) -> bool:
    """Rows of the programs that must be found, with the kernels of both sides."""
    rows.head(
        "Must find, with kernels",
        "`compare` on two versions of a program; kernels of the pivot on both sides.",
        (*must_find.COLUMNS[:3], "reference", "suspect", "kernels", "right"),
    )
    right = True
    with ThreadPoolExecutor(options.jobs) as pool:
        for future in as_completed([pool.submit(_compared, case, mode, options) for case in cases for mode in case["modes"]]):
            right &= _judged(rows, options, *future.result())
    return right


def _compared(case: dict[str, Any], mode: str, options: argparse.Namespace) -> tuple[dict[str, Any], str, dict[str, Any], list[str]]:
    with tempfile.TemporaryDirectory(prefix="opguard-coverage-", dir=options.scratch) as scratch:
        chosen = argparse.Namespace(**{**vars(options), "engine": ""})  # `compare` chooses
        answer = must_find.compared(case, mode, chosen, Path(scratch), programs=PROGRAMS)
        kernels = _kernels(answer)
    if options.answers is not None:
        options.answers.mkdir(parents=True, exist_ok=True)
        (options.answers / f"{case['slug']}-{mode}.json").write_text(json.dumps(answer, indent=1), "utf-8")
    return case, mode, answer, kernels


def _kernels(answer: Mapping[str, Any]) -> list[str]:
    """What the answer says that the pivot launched, on each side."""
    pivot = answer.get("pivot") or next(iter(answer.get("rank_firsts") or []), None) or {}
    kernels = pivot.get("kernels") or {}
    told = []
    for side in ("reference", "suspect"):
        words = [_counted(row) for row in kernels.get(side) or []]
        more = f"; and {len(words) - MAX_KERNELS} more" if len(words) > MAX_KERNELS else ""
        told.append("; ".join(words[:MAX_KERNELS]) + more or "none")
    return [*told, str(kernels.get("how", "not told"))]


def _counted(row: Mapping[str, Any]) -> str:
    return f"{row['name']} x{row['count']}" if row["count"] > 1 else str(row["name"])


def _judged(rows: Rows, options: argparse.Namespace, case: dict[str, Any], mode: str, answer: dict[str, Any], kernels: list[str]) -> bool:
    if answer.get("error") or answer.get("verdict") is None:
        rows.row(
            (
                case["slug"],
                mode,
                f"ERROR: {(answer.get('error') or {}).get('text', 'no verdict')}"[:300],
                *kernels,
                "NO",
            )
        )
        return False
    faults, said = must_find.judge(must_find.wanted(case, mode, options.device), answer)
    if not options.dry_run and any(told in ("none", "not told", "unknown") for told in kernels):
        faults.append("no kernels")
    rows.row((case["slug"], mode, said, *kernels, "yes" if not faults else f"NO: {'; '.join(faults)}"))
    return not faults


def fakes(folder: Path) -> Path:
    """Build the fake driver."""
    script = folder / "driver.map"
    script.write_text("libcuda_test { global: *; };\n")
    command = ["cc", "-O1", "-shared", "-fPIC", str(FAKES / "driver.c"), "-o", str(folder / "libcuda.so.1")]
    subprocess.run([*command, f"-Wl,--version-script={script},-soname,libcuda.so.1"], check=True)
    return folder


def prepare(options: argparse.Namespace) -> None:
    """Build what every process would build, once."""
    built = builds.obtain(shim.recipe())  # type: ignore[arg-type]
    if isinstance(built, builds.NotBuilt):
        raise SystemExit(f"no shim: {built.reason}")
    options.shim = built.path
    if not options.dry_run:
        from opguard_core.engines import native_build
        from opguard_core.fingerprint import native
        from opguard_core.probe import kernel_build, launch_recipe

        builds.prepare([native.recipe(), launch_recipe.recipe_if_needed(), native_build.recipe()])
        kernel_build.prepare()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], metavar="SECTION")
    parser.add_argument("--jobs", type=int, default=4, help="Sections side by side.")
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--timeout", type=float, default=120.0, help="Seconds a process may run.")
    parser.add_argument("--python", default=sys.executable, help="The training's interpreter, for the programs.")
    parser.add_argument("--scratch", type=Path, help="Folder for traces; the system's by default.")
    parser.add_argument("--out", type=Path, help="Rows are appended to this file.")
    parser.add_argument("--answers", type=Path, help="Folder for the answers of the programs.")
    parser.add_argument("--dry-run", action="store_true")
    options = parser.parse_args()
    options.device, rows, begun = "cpu" if options.dry_run else "cuda", Rows(options.out), time.monotonic()
    programs = must_find.cases([], programs=PROGRAMS)
    known = {*SECTIONS, "cost", "steps", *(case["slug"] for case in programs)}
    if unknown := set(options.only) - known:
        raise SystemExit(f"There is no section {', '.join(sorted(unknown))}; there are {', '.join(sorted(known))}.")
    chosen = set(options.only) or known
    with tempfile.TemporaryDirectory(prefix="opguard-fakes-") as folder:
        options.fakes = fakes(Path(folder)) if options.dry_run else None
        prepare(options)
        right = _all(rows, options, chosen, [case for case in programs if case["slug"] in chosen])
    rows.line(f"\n{'All held.' if right else 'NOT all held.'} {time.monotonic() - begun:.0f} s.")
    return 0 if right else 1


def _all(rows: Rows, options: argparse.Namespace, chosen: set[str], programs: Sequence[dict[str, Any]]) -> bool:
    sections, right = [name for name in SECTIONS if name in chosen], True
    if options.dry_run:
        sections = sections[:1]
    if sections:
        rows.head(
            "Kernels seen", where(options.device) + " Three calls of each section under torch.profiler and a capture in mode full.", COLUMNS
        )
        with ThreadPoolExecutor(options.jobs) as pool:
            running = {pool.submit(child, name, options): name for name in sections}
            for future in as_completed(running):
                right &= tell(rows, running[future], future.result(), options)
    if "cost" in chosen:
        right &= cost(rows, options)
    if "steps" in chosen:
        right &= steps(rows, options)
    if programs:
        right &= must(rows, options, programs)
    return right


if __name__ == "__main__":
    raise SystemExit(main())
