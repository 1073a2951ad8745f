"""What has to be found on a card: each program of `programs/` compared by the command people use, the answer held against the truth.

    python3 -m tests.gpu.must_find [--only SLUG ...] [--modes verify ...] [--jobs 4] [--out FILE] [--answers DIR]

One row for each program and mode, written as soon as it is known. The first comparison runs alone, since it builds what the others
find built; the rest run side by side (`--jobs`). The stream race is also repeated in one process (`race_loop`), first and alone.
Without a card (`--device cpu`) the programs do what a CPU can: no kernel there adds with atomics, so those rows say "identical".
Exit code 0 only if all rows are right.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from tests.gpu.rows import Rows, observers, where

PROGRAMS = Path(__file__).parent / "programs"
REPOSITORY = Path(__file__).resolve().parents[2]
COLUMNS = ("program", "mode", "found", "engine", "seconds (reference, suspect, judging)", "right")
Case = dict[str, Any]


def cases(only: Sequence[str], programs: Path = PROGRAMS) -> list[Case]:
    """The truth of all programs, or of those named."""
    found = [json.loads(path.read_text("utf-8")) for path in sorted(programs.glob("*/case.json"))]
    unknown = set(only) - {case["slug"] for case in found}
    if unknown:
        raise SystemExit(f"There is no program {', '.join(sorted(unknown))} in {programs}.")
    return [case for case in found if not only or case["slug"] in only]


def wanted(case: Case, mode: str, device: str) -> dict[str, Any]:
    """What must be found in a mode on a device."""
    truth = {key: value for key, value in case["expected"].items() if key != "by_mode"}
    truth |= case["expected"].get("by_mode", {}).get(mode, {})
    on_cpu = case.get("on_cpu") if device == "cpu" else None
    return truth if on_cpu is None else {**(truth if "verdict" not in on_cpu else {}), **on_cpu}


def judge(truth: Mapping[str, Any], answer: Mapping[str, Any]) -> tuple[list[str], str]:
    """What is wrong with an answer, and what it says in short.

    Args:
        truth: Of `wanted`.
        answer: What `compare --json` printed.
    """
    pivot = answer.get("pivot") or next(iter(answer.get("rank_firsts") or []), None)
    reasons = [reason["slug"] for reason in answer.get("reasons") or []]
    said = [str(answer.get("verdict"))]
    if pivot is not None and answer["verdict"] != "identical":
        place = pivot["suspect"] or pivot["reference"] or {}
        alternatives = " or ".join([pivot["origin"], *pivot["origin_alternatives"]])
        where_ = f"{place.get('file')}:{place.get('line')}"
        said.append(f"step {pivot['step']} {pivot['phase']} `{pivot['operator']}` {pivot['slot']} [{alternatives}] at {where_}")
    said += reasons
    return list(_faults(truth, answer, pivot, reasons)), "; ".join(said)


def _faults(truth: Mapping[str, Any], answer: Mapping[str, Any], pivot: Mapping[str, Any] | None, reasons: list[str]) -> Iterator[str]:
    if answer.get("verdict") not in truth["verdict"]:
        yield f"verdict {answer.get('verdict')}, wanted {' or '.join(truth['verdict'])}"
        return
    for slug in truth.get("reasons", ()):
        if slug not in reasons:
            yield f"no reason {slug}"
    differing = {item["key"] for item in answer.get("contract") or []}
    for key in truth.get("contract", ()):
        if key not in differing:
            yield f"the contract does not name {key}"
    if answer["verdict"] == "identical":
        if not (answer.get("prefix") or {}).get("pairs"):
            yield "identical over no pairs"
        return
    if pivot is None:
        yield "no place"
        return
    if "step" in truth and pivot["step"] != truth["step"]:
        yield f"step {pivot['step']}, wanted {truth['step']}"
    if "phase" in truth and pivot["phase"] not in truth["phase"]:
        yield f"phase {pivot['phase']}"
    if "operator" in truth and not any(word in pivot["operator"] for word in truth["operator"]):
        yield f"operator {pivot['operator']}"
    if "origin" in truth and pivot["origin"] not in truth["origin"]:
        yield f"origin {pivot['origin']}, wanted {' or '.join(truth['origin'])}"
    if "text" in truth and not _is_place(truth, pivot):
        yield "another place"


def _is_place(truth: Mapping[str, Any], pivot: Mapping[str, Any]) -> bool:
    """Whether the pivot, or the forward of a backward pivot, is where the truth says on one of the sides."""
    forward = pivot.get("forward") or {}
    places = [side for side in (pivot["suspect"], pivot["reference"], forward.get("suspect"), forward.get("reference")) if side]
    return any(
        place["file"] == truth["file"] and any(_squashed(text) in _squashed(place["statement"] + place["text"]) for text in truth["text"])
        for place in places
    )


def _squashed(text: str) -> str:
    return "".join(text.split())


def compared(case: Case, mode: str, options: argparse.Namespace, folder: Path, programs: Path = PROGRAMS) -> dict[str, Any]:
    """Run `compare --json` on one program in one mode; its answer, or `{"error": ...}`."""
    sides = programs / case["slug"]
    suspect = sides / ("reference" if case.get("self") else "suspect")
    command = [sys.executable, "-m", "opguard_harness", "compare", "--json", "--mode", mode, "--python", options.python]
    command += ["--reference", str(sides / "reference"), "--suspect", str(suspect), "--out", str(folder / "out")]
    command += ["--timeout", str(options.timeout), *(["--deterministic"] if case.get("deterministic") else [])]
    command += [*(["--engine", options.engine] if options.engine else []), *case.get("options", [])]
    command += ["--", *case["launch"], "--device", options.device]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    path = [str(REPOSITORY), *filter(None, [environment.get("PYTHONPATH", "")])]
    environment["PYTHONPATH"] = os.pathsep.join(path)
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, check=False)
    try:
        return dict(json.loads(done.stdout))
    except ValueError:
        return {"error": {"text": (done.stderr.strip().splitlines() or ["no output"])[-1]}}


def engines(folder: Path) -> str:
    """Which engine saw the suspect, and where its fingerprints were computed, as its manifest says."""
    manifest = next(folder.glob("out/suspect/trace/rank-00000/manifest.json"), None)
    if manifest is None:
        return ""
    return observers(json.loads(manifest.read_bytes()).get("engines"))


def one(case: Case, mode: str, options: argparse.Namespace) -> tuple[Case, str, dict[str, Any], str, float]:
    """One comparison in a scratch folder."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="opguard-must-find-", dir=options.scratch) as scratch:
        answer = compared(case, mode, options, Path(scratch))
        seen = engines(Path(scratch))
    if options.answers is not None:
        options.answers.mkdir(parents=True, exist_ok=True)
        (options.answers / f"{case['slug']}-{mode}.json").write_text(json.dumps(answer, indent=1), "utf-8")
    return case, mode, answer, seen, time.monotonic() - begun


def tell(rows: Rows, device: str, found: tuple[Case, str, dict[str, Any], str, float]) -> bool:
    """Write the row of a comparison; whether it is right."""
    case, mode, answer, seen, total = found
    if answer.get("error") or answer.get("verdict") is None:
        message = str((answer.get("error") or {}).get("text", "no verdict"))
        rows.row((case["slug"], mode, f"ERROR: {message[:300]}", seen, f"{total:.1f}", "NO"))
        return False
    faults, said = judge(wanted(case, mode, device), answer)
    parts = answer.get("seconds") or {}
    judging = parts.get("align", 0.0) + parts.get("certify", 0.0)
    seconds = f"{total:.1f} ({parts.get('reference', 0):.1f}, {parts.get('suspect', 0):.1f}, {judging:.1f})"
    rows.row((case["slug"], mode, said, seen, seconds, "yes" if not faults else f"NO: {'; '.join(faults)}"))
    return not faults


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], metavar="SLUG", help="These programs; `race-loop` is the repeated race.")
    parser.add_argument("--modes", nargs="+", default=[], help="These modes, of those that a program has.")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--engine", default="", help="Engine to ask for; `compare` chooses by default.")
    parser.add_argument("--jobs", type=int, default=4, help="Comparisons side by side.")
    parser.add_argument("--repetitions", type=int, default=20, help="Of the race in one process.")
    parser.add_argument("--timeout", type=float, default=120.0, help="Seconds a side may run.")
    parser.add_argument("--python", default=sys.executable, help="The training's interpreter.")
    parser.add_argument("--scratch", type=Path, help="Folder for traces; the system's by default.")
    parser.add_argument("--out", type=Path, help="Rows are appended to this file.")
    parser.add_argument("--answers", type=Path, help="Folder for the answers.")
    options = parser.parse_args()
    rows, right = Rows(options.out), True
    names = [name for name in options.only if name != "race-loop"]
    if not options.only or "race-loop" in options.only:
        loop = [sys.executable, "-m", "tests.gpu.race_loop", "--device", options.device, "--repetitions", str(options.repetitions)]
        loop += ["--out", str(options.out.absolute())] if options.out else []
        loop += ["--modes", *options.modes] if options.modes else []
        loop += ["--engine", options.engine] if options.engine else []
        right &= subprocess.run(loop, cwd=REPOSITORY, check=False).returncode == 0
    if options.only and not names:
        return 0 if right else 1
    work = [(case, mode) for case in cases(names) for mode in case["modes"] if not options.modes or mode in options.modes]
    rows.head("Must find", where(options.device), COLUMNS)
    right &= all([tell(rows, options.device, one(*work[0], options))] if work else [])
    with ThreadPoolExecutor(options.jobs) as pool:
        for future in as_completed([pool.submit(one, case, mode, options) for case, mode in work[1:]]):
            right &= tell(rows, options.device, future.result())
    rows.line(f"\n{'All are right.' if right else 'NOT all are right.'}")
    return 0 if right else 1


if __name__ == "__main__":
    raise SystemExit(main())
