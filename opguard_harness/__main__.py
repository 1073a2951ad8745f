"""Console script: everything that can fail, import errors included, fails inside ``main`` and ends in code 2.

Only the standard library is imported at module level, so that a broken installation still gets an answer instead of a
traceback and exit code 1, which means "diverged" here.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Sequence

EXIT_ERROR = 2
EXIT_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: Command line without the program's name; None reads ``sys.argv``.

    Returns:
        0, 1 (diverged only), 2 (any error), 3 (inconclusive) or 130 (interrupted).
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    answered = threading.Event()
    try:
        _occupy_standard_descriptors()
        from opguard_harness.edge import run

        return run(words, answered)
    except KeyboardInterrupt:
        wants_json = "--json" in words and not answered.is_set()
        return _last_resort("interrupted", "Interrupted.", "Run the command again.", EXIT_INTERRUPTED, wants_json=wants_json)
    except BaseException as error:  # noqa: BLE001 - the outermost edge: an installation too broken to report through `edge`
        text = f"{type(error).__name__}: {error}"
        fix = "Install opguard-mcp again: pip install --force-reinstall opguard-mcp"
        return _last_resort("internal", text, fix, EXIT_ERROR, wants_json="--json" in words and not answered.is_set())


def _last_resort(slug: str, text: str, fix: str, code: int, *, wants_json: bool) -> int:
    """Answer with the standard library alone; a closed stream is the last thing that may still go wrong."""
    answer = json.dumps({"schema": 1, "verdict": None, "error": {"slug": slug, "text": text, "fix": fix}})
    try:
        if sys.stderr is not None:
            sys.stderr.write(f"opguard-harness: {text} {fix} [{slug}]\n")
        if wants_json and sys.stdout is not None:
            sys.stdout.write(answer + "\n")
            sys.stdout.flush()
    except (OSError, ValueError):
        return code
    return code


def _occupy_standard_descriptors() -> None:
    """Fill descriptors that the caller closed, so that no file of ours becomes somebody's standard output."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


if __name__ == "__main__":
    sys.exit(main())
