"""``python -m tests.faults.attack``: attack every target and print a table; ``--replay FILE`` runs one input again."""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.attack.targets import TARGETS, Target

MEMORY_BYTES = 3 << 30  # address space of a process under attack, pyarrow and numpy included
SECONDS = 3600  # for all inputs of one target


@dataclass
class Attacked:
    """What became of one target."""

    target: str
    inputs: int = 0
    guided: bool = False
    outcomes: dict[str, int] = field(default_factory=dict)
    failure: str = ""


def attack(target: Target, inputs: int, seed: int, artefacts: Path) -> Attacked:
    """Attack one target in a process of its own with bounded memory.

    Args:
        target: What to attack.
        inputs: How many inputs.
        seed: Of the search.
        artefacts: Where an input that breaks a promise is left.
    """

    def bounded() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))

    command = [sys.executable, "-m", "tests.faults.attack.fuzz", target.name, str(inputs), str(seed), str(artefacts)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=SECONDS, preexec_fn=bounded, check=False)
    if done.returncode:
        told = "\n".join(line for line in (done.stderr + done.stdout).splitlines() if not line.startswith("INFO: "))
        return Attacked(target.name, failure=f"exit {done.returncode}\n{told[-4000:]}\ninputs: {artefacts}")
    return Attacked(target.name, **json.loads(done.stdout.splitlines()[-1]))


def attack_all(inputs: int, seed: int, artefacts: Path, jobs: int, only: str = "") -> list[Attacked]:
    """Attack all targets (or one), a share of the inputs each."""
    chosen = [target for target in TARGETS if only in ("", target.name)]
    whole = sum(target.share for target in chosen)
    with ThreadPoolExecutor(jobs) as pool:
        work = [pool.submit(attack, target, round(inputs * target.share / whole), seed, artefacts / target.name) for target in chosen]
        return [item.result() for item in work]


def table(found: list[Attacked]) -> str:
    """Markdown."""
    rows = ["| target | inputs | search | outcomes |", "|---|---|---|---|"]
    for item in found:
        outcomes = ", ".join(f"{name} {count:,}" for name, count in sorted(item.outcomes.items())) or "**broken**"
        rows.append(f"| {item.target} | {item.inputs:,} | {'by coverage' if item.guided else 'random'} | {outcomes} |")
    return "\n".join(rows)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.attack", description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000, help="of all targets together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", choices=[target.name for target in TARGETS], default="")
    parser.add_argument("--replay", type=Path, help="run one input of the target --only again")
    given = parser.parse_args()
    if given.replay:
        target = next(target for target in TARGETS if target.name == given.only)
        print(target.attack(given.replay.read_bytes()))
        return 0
    found = attack_all(given.inputs, given.seed, Path(tempfile.mkdtemp(prefix="opguard-attack-")), given.jobs, given.only)
    print(table(found))
    for item in found:
        if item.failure:
            print(f"\n{item.target}: {item.failure}")
    return int(any(item.failure for item in found))


if __name__ == "__main__":
    raise SystemExit(main())
