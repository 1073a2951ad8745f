"""Runs one target in this process for a number of inputs, guided by coverage where atheris is installed.

Started by `python -m tests.faults.attack`, which puts a bound on memory and time around it. The last line of standard
output is a JSON object: inputs, outcomes, and whether coverage guided the search. An input that breaks a promise ends the
process with its traceback; it lies in the folder of artefacts then.
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import sys
from collections import Counter
from pathlib import Path

SECONDS_AN_INPUT = 60  # more is a hang
MAX_INPUT_BYTES = 1 << 16


def main(name: str, inputs: int, seed: int, artefacts: Path) -> None:
    """Attack one target."""
    guided = importlib.util.find_spec("atheris") is not None
    if guided:
        import atheris

        with atheris.instrument_imports(include=["opguard_core.trace", "opguard_core.align", "opguard_core.certify"]):
            from tests.faults.attack.targets import TARGETS
    else:
        from tests.faults.attack.targets import TARGETS
    target = next(target for target in TARGETS if target.name == name)
    outcomes: Counter[str] = Counter()

    def one(data: bytes) -> None:
        outcomes[target.attack(data)] += 1
        if outcomes.total() >= inputs:  # the fuzzer's own end runs no Python any more
            print(json.dumps({"inputs": outcomes.total(), "guided": guided, "outcomes": dict(outcomes)}), flush=True)
            os._exit(0)

    seeds = list(target.seeds())
    if not guided:
        _unguided(one, seeds, random.Random(seed), artefacts)
    corpus = artefacts / f"corpus-{name}"
    corpus.mkdir(parents=True)
    for number, data in enumerate(seeds):
        (corpus / f"seed-{number:04d}").write_bytes(data)
    options = [f"-seed={seed}", f"-timeout={SECONDS_AN_INPUT}", f"-artifact_prefix={artefacts}/", f"-max_len={MAX_INPUT_BYTES}"]
    atheris.Setup([sys.argv[0], str(corpus), *options, "-verbosity=0", "-rss_limit_mb=0"], one)
    atheris.Fuzz()


def _unguided(one: object, seeds: list[bytes], rng: random.Random, artefacts: Path) -> None:
    """Change bytes of the seeds at random, until `one` ends the process."""
    assert callable(one)
    while True:
        data = bytearray(rng.choice(seeds))
        for _ in range(rng.randint(0, 8)):
            at = rng.randrange(len(data) + 1)
            data[at : at + rng.randint(0, 2)] = rng.randbytes(rng.randint(0, 2))
        try:
            one(bytes(data))
        except BaseException:
            artefacts.mkdir(parents=True, exist_ok=True)
            (artefacts / "crash-unguided").write_bytes(data)
            raise


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
