"""Run one program bare and observed, in the same place, and say everything that differs.

    bare, observed = both_ways(tmp_path, files, ["python", "train.py"])
    assert not differences(bare, observed)

A program is a folder or a mapping of file names to texts. Both runs happen in a fresh copy of it at the same path, so
tracebacks and messages are comparable word for word.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opguard_core.plan.command import launch_argv

OBSERVER = Path(__file__).parent / "observer"
TIMEOUT_S = 110
# What differs between any two runs of the same program.
_NOISE = (
    (re.compile(r"0x[0-9a-f]{6,}"), "0x"),
    (re.compile(r"^([WEIF])\d{4} [\d:.]+ \d+ ", re.MULTILINE), r"\1 "),  # torchrun's log lines: time and process id
    (re.compile(r"\d{4}-\d\d-\d\d[ _T][\d:.]+"), "TIME"),
    (re.compile(r"\bpid: \d+|\bprocess \d+|\(pid[: ]+\d+\)|-\d+ \(most recent"), "PID"),
    (re.compile(r"(/tmp/)?(torchelastic|pymp|tmp)[-_]?\w{6,}"), "TMP"),
)


@dataclass
class Seen:
    """What one run showed.

    Attributes:
        status: Exit code, 128 + N for signal N.
        stdout: Its standard output.
        stderr: Its standard error, less the launcher's own lines and what differs between any two runs.
        said: The launcher's own lines.
        files: Digest of every file in the program's folder afterwards; of byte code, only that it is there.
        reports: What each of its processes was like at exit, in an order of their own.
        manifest: The run manifest, for the observed run.
        trace: The trace directory, for the observed run.
    """

    status: int
    stdout: str
    stderr: str
    said: list[str]
    files: dict[str, str]
    reports: list[dict[str, Any]]
    manifest: dict[str, Any] = field(default_factory=dict)
    trace: Path | None = None

    def rank_manifest(self, rank: int) -> dict[str, Any]:
        """The manifest of one rank of the observed run."""
        assert self.trace is not None
        return json.loads((self.trace / f"rank-{rank:05d}" / "manifest.json").read_text())


def both_ways(
    work: Path,
    program: Path | Mapping[str, str],
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    options: Mapping[str, Any] | None = None,
) -> tuple[Seen, Seen]:
    """Run a program bare, then observed.

    Args:
        work: Empty folder for this.
        program: Its folder, or its files.
        argv: Command line; the first word may be ``python``, ``torchrun`` or ``accelerate`` of this environment.
        env: Variables to add.
        options: Keyword arguments of ``launch_argv``, such as ``mode``.
    """
    words = [_tool(argv[0]), *argv[1:]]
    bare = _run(work, "bare", program, words, env or {})
    out = work / "trace"
    launched = launch_argv(sys.executable, out, words, **{"mode": "verify", **(options or {})})
    observed = _run(work, "observed", program, launched, env or {})
    if (out / "manifest.json").exists():
        observed.manifest, observed.trace = json.loads((out / "manifest.json").read_text()), out
    return bare, observed


def differences(bare: Seen, observed: Seen, *, ordered: bool = True, ignore: Sequence[str] = ()) -> list[str]:
    """Everything that observing changed, as readable lines; empty when it was harmless.

    Args:
        bare: The bare run.
        observed: The observed run.
        ordered: Whether lines of output come in one order; several ranks write as they like.
        ignore: Keys of reports to leave out.
    """
    arrange = (lambda text: text) if ordered else (lambda text: "\n".join(sorted(text.splitlines())))
    found = [
        f"{name}: {one!r} became {other!r}"
        for name, one, other in (
            ("status", bare.status, observed.status),
            ("stdout", arrange(bare.stdout), arrange(observed.stdout)),
            ("stderr", arrange(bare.stderr), arrange(observed.stderr)),
            ("files", bare.files, observed.files),
            ("number of processes", len(bare.reports), len(observed.reports)),
        )
        if one != other
    ]
    for one, other in zip(bare.reports, observed.reports, strict=False):
        found += [
            f"{key} of {one['orig_argv'][1:3]}: {one.get(key)!r} became {other.get(key)!r}"
            for key in sorted(set(one) | set(other) - set(ignore))
            if one.get(key) != other.get(key) and key not in ignore
        ]
    return found


def _tool(word: str) -> str:
    beside = Path(sys.executable).parent
    return sys.executable if word == "python" else str(beside / word) if word in ("torchrun", "accelerate") else word


def _run(work: Path, name: str, program: Path | Mapping[str, str], argv: Sequence[str], env: Mapping[str, str]) -> Seen:
    folder, reports, home = work / "program", work / f"{name}-reports", work / "home"
    for fresh in (folder, reports, home):
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir()
    if isinstance(program, Path):
        shutil.copytree(program, folder, dirs_exist_ok=True)
    else:
        for path, text in program.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(textwrap.dedent(text))
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("OPGUARD", "PYTHON", "PYTEST", "COV"))}
    ours = {"PYTHONPATH": str(OBSERVER), "HARMLESS_REPORTS": str(reports), "OMP_NUM_THREADS": "1", "HOME": str(home), "PYTHONHASHSEED": "0"}
    done = subprocess.run(
        argv,
        cwd=folder,
        env={**clean, **ours, **env},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    said = [line for line in done.stderr.splitlines() if line.startswith("opguard: ")]
    return Seen(
        status=done.returncode if done.returncode >= 0 else 128 - done.returncode,
        stdout=without_noise(done.stdout),
        stderr=programs_own(done.stderr),
        said=said,
        files=_files(folder),
        reports=read_reports(reports),
    )


def programs_own(stderr: str) -> str:
    """Standard error less the launcher's own lines and what differs between any two runs."""
    return without_noise("".join(line for line in stderr.splitlines(keepends=True) if not line.startswith("opguard: ")))


def read_reports(folder: Path) -> list[dict[str, Any]]:
    """What each process was like at exit, in an order of their own."""
    return sorted(
        (_read(path) for path in folder.glob("*.json")), key=lambda report: (report["orig_argv"], report["rank"], json.dumps(report))
    )


def _read(path: Path) -> dict[str, Any]:
    report = json.loads(without_noise(path.read_text()))
    # A child of multiprocessing is told its descriptors, a rank its run.
    report["orig_argv"] = [re.sub(r"\d+", "N", word) if "multiprocessing" in word else word for word in report["orig_argv"]]
    for name in ("TORCHELASTIC_RUN_ID", "MASTER_PORT", "TORCHELASTIC_ERROR_FILE", "TORCH_NCCL_ASYNC_ERROR_HANDLING"):
        report["environ"].pop(name, None)
    report["rank"] = report["environ"].get("RANK", "")
    return report


def _files(folder: Path) -> dict[str, str]:
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_dir():
            found[name] = "folder"
        else:
            found[name] = "byte code" if path.suffix == ".pyc" else hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def without_noise(text: str) -> str:
    """A text less what differs between any two runs."""
    for pattern, plain in _NOISE:
        text = pattern.sub(plain, text)
    return text
