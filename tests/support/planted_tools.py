"""Tools that misbehave in one way each, for the tests of the server; as a program, the real command with them added.

python -m tests.support.planted_tools WORDS...    is `opguard-harness WORDS...` with these tools
"""

import os
import subprocess
import sys
import threading
from dataclasses import dataclass

import anyio

from opguard_core.errors import EvidenceNotFound
from opguard_harness.interface.declaration import Kind, Next, Result, Tool, argument

SECRET = "hunter2-in-an-exception"
released = threading.Event()
"""Lets `planted_stuck` return, in this process."""
ended = []
"""What became of the waits of `planted_wait`, in this process."""


@dataclass(frozen=True)
class NoArguments:
    pass


@dataclass(frozen=True)
class SizeArguments:
    size: int = argument("Characters to answer with.", 0, ge=0)
    words: list[str] = argument("Words.", [])


@dataclass(frozen=True)
class WaitArguments:
    rounds: int = argument("Progress to report before it answers; 0 reports one and never answers.", 0, ge=0)


@dataclass(frozen=True, kw_only=True)
class TextResult(Result):
    text: str = ""
    nothing: str | None = None


def prints(arguments):
    """Write to standard output in every way there is."""
    print("planted print")
    sys.stdout.flush()
    sys.__stdout__.write("planted write\n")
    sys.__stdout__.flush()
    os.write(1, b"planted descriptor\n")
    subprocess.run([sys.executable, "-c", "print('planted child')"], check=True)
    done = subprocess.run(
        [sys.executable, "-c", "import sys; print(repr(sys.stdin.read()))"], stdout=subprocess.PIPE, text=True, check=True
    )
    return TextResult(summary="printed", text=done.stdout.strip())


def crashes(arguments):
    """Fail as no code expects."""
    raise RuntimeError(f"{SECRET} /root/private/place.py https://errors.pydantic.dev/2/v/int")


def refuses(arguments):
    """Fail with ways out, one of them to a tool that a read-only server lacks."""
    calls = (Next("list_runs", {"limit": 3}, "look"), Next("planted_writes", {}, "write"))
    raise EvidenceNotFound("Nothing is there.", hint="Look at what there is.", next=calls)


def answers(arguments):
    """Answer with a text of that size and with calls of which one writes."""
    calls = [Next("planted_writes", {}, "write"), Next("list_runs", {}, "look")]
    return TextResult(summary="\u00e9\ud800 of a size", text="x" * arguments.size, next=calls)


def stuck(arguments):
    """Never come back by itself, in a thread that nothing can cancel."""
    print("planted stuck", file=sys.stderr, flush=True)
    released.wait()
    return TextResult(summary="let go")


async def waits(arguments, report):
    """Report progress, then answer, or wait for ever."""
    try:
        for done in range(arguments.rounds or 1):
            await report(done + 1, arguments.rounds or None, f"round {done + 1}")
        if not arguments.rounds:
            await anyio.sleep_forever()
    except anyio.get_cancelled_exc_class():
        ended.append("cancelled")
        raise
    return TextResult(summary="waited")


def planted(name, run, arguments=NoArguments, kind=Kind.ANSWER, read_only=True, **hints):
    return Tool(f"planted_{name}", "runs", f"Planted: {run.__doc__}", arguments, TextResult, run, read_only=read_only, kind=kind, **hints)


TOOLS = (
    planted("prints", prints),
    planted("crashes", crashes),
    planted("refuses", refuses),
    planted("answers", answers, SizeArguments),
    planted("stuck", stuck),
    planted("waits", waits, WaitArguments, Kind.WAIT),
    planted("writes", answers, SizeArguments, read_only=False),
)


def plant(setter=setattr):
    """Add the tools wherever the registry's list is looked at."""
    from opguard_harness import invoke, registry
    from opguard_harness.server import adapter

    tools = (*registry.TOOLS, *TOOLS)
    for module in (registry, invoke, adapter):
        setter(module, "TOOLS", tools)


if __name__ == "__main__":
    from opguard_harness.__main__ import main

    plant()
    sys.exit(main())
