"""`compare`: run both sides and give the verdict."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import typer

from opguard_harness.answer.plain import dumps
from opguard_harness.cli.outcome import Outcome

HELP = """Run the same command in both folders under observation and say where they first differ.

ARGV (after --, default: python train.py) runs once in each folder, the reference first. A side may also be a script (its folder is
used) or an existing trace directory. Exit codes: 0 identical, 1 diverged, 3 inconclusive, 2 error, 130 interrupted."""


def compare(
    argv: list[str] = typer.Argument(None, metavar="-- ARGV...", help="Command line of both programs.", show_default=False),
    reference: str = typer.Option("", help="Folder, script or trace that is right."),
    suspect: str = typer.Option(..., help="Folder, script or trace in question."),
    reference_commit: str = typer.Option("", metavar="REV", help="Run this commit of the reference folder's repository."),
    reference_args: str = typer.Option("", metavar="WORDS", help="Words appended to the reference's command line."),
    suspect_args: str = typer.Option("", metavar="WORDS", help="Words appended to the suspect's command line."),
    reference_env: list[str] = typer.Option([], metavar="K=V", help="Variable for the reference; may be repeated."),
    suspect_env: list[str] = typer.Option([], metavar="K=V", help="Variable for the suspect; may be repeated."),
    mode: str = typer.Option(
        None,
        metavar="verify|full|trusted|sentinel",
        help="How much is read: verify proves most, trusted less; sentinel finds the step of a long run and replays it. Default: full.",
        show_default=False,
    ),
    plan: str = typer.Option("", metavar="FILE", help="Plan of a preflight: fixes mode, steps and knobs, and is looked for in both runs."),
    steps: str = typer.Option("", metavar="A:B", help="Observe these 0-based steps, B not included."),
    narrow: bool = typer.Option(False, "--narrow", help="Replay, in private copies and mode verify, the step that the answer leaves open."),
    deterministic: bool = typer.Option(False, "--deterministic", help="Apply the determinism settings in both programs and record them."),
    stop_on_contract: bool = typer.Option(
        False, "--stop-on-contract", help="End both as soon as settings that change arithmetic are seen to differ."
    ),
    python: str = typer.Option("", metavar="PATH", help="Interpreter with torch that runs the programs."),
    timeout: float = typer.Option(None, metavar="S", help="Seconds each side may run.", show_default=False),
    out: str = typer.Option("", metavar="DIR", help="Folder for the results: absent or empty, outside both sides."),
    filters: str = typer.Option("", metavar="FILE", help="Apply the benign filters of this file, see `opguard-harness filters`."),
    as_json: bool = typer.Option(False, "--json", help="Print the answer as one JSON object."),
) -> Outcome:
    """Translate options into a request, and the answer into text."""
    from opguard_harness.compare import pipeline
    from opguard_harness.compare.planned import capture_under
    from opguard_harness.compare.request import CompareRequest, named_sides, steps_of
    from opguard_harness.report.progress import Progress
    from opguard_harness.report.short import short_answer
    from opguard_harness.workspace.filter_file import filters_named

    sides = named_sides(
        reference,
        suspect,
        reference_commit=reference_commit,
        words=(reference_args, suspect_args),
        env=(reference_env, suspect_env),
    )
    capture = capture_under(
        Path(plan) if plan else None,
        mode=mode,
        steps=steps_of(steps),
        deterministic=deterministic,
        python=Path(python) if python else None,
        timeout_s=timeout,
    )
    request = CompareRequest(
        *sides,
        capture=replace(capture, stop_on_contract=stop_on_contract),
        argv=tuple(argv) if argv else None,
        out=Path(out) if out else None,
        narrow=narrow,
        filters=filters_named(filters),
    )
    answer = pipeline.compare(request, Progress())
    return Outcome(dumps(answer) if as_json else "\n".join(short_answer(answer)), verdict=answer["verdict"])
