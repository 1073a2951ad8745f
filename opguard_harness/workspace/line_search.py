"""Search of lines by a regular expression, as a program of its own: it can be ended, whatever the expression does.

Started as a script with `-I -S`; standard library only, and nothing of ours. Standard input: a JSON object {"pattern", "literal",
"fold", "texts": [text, ...], "skip", "limit", "line_chars"}. Standard output: {"hits": [[text number, line number], ...], "total"}
or {"error": why the expression does not compile}.
"""

from __future__ import annotations

import json
import re
import resource
import sys
from typing import Any

CPU_S = 5
MEMORY_BYTES = 1 << 30


def main() -> None:
    """Read one request, answer it."""
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    json.dump(search(json.load(sys.stdin)), sys.stdout)


def search(request: dict[str, Any]) -> dict[str, Any]:
    """Find the lines that match; of a long line only the beginning is looked at."""
    pattern = re.escape(request["pattern"]) if request["literal"] else request["pattern"]
    try:
        expression = re.compile(pattern, re.IGNORECASE if request["fold"] else 0)
    except (re.error, OverflowError, RecursionError) as error:
        return {"error": str(error)}
    hits: list[list[int]] = []
    total = 0
    for number, text in enumerate(request["texts"]):
        for line, content in enumerate(text.splitlines(), 1):
            if expression.search(content[: request["line_chars"]]):
                total += 1
                if request["skip"] < total <= request["skip"] + request["limit"]:
                    hits.append([number, line])
    return {"hits": hits, "total": total}


if __name__ == "__main__":
    main()
