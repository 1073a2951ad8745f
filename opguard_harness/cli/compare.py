"""`compare`: run both sides and give the verdict."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import typer

from opguard_core.plan.config import AUTO
from opguard_harness.answer.plain import dumps
from opguard_harness.cli import side_options
from opguard_harness.cli.outcome import Outcome

HELP = """Run the same command in both folders under observation and say where they first differ.

ARGV (after --, default: python train.py) runs once in each folder, the reference first. A side may also be a script (its folder is
used) or an existing trace directory. Exit codes: 0 identical, 1 diverged, 3 inconclusive, 2 error, 130 interrupted."""


def compare(
    *,
    argv: side_options.Argv = None,
    reference: side_options.Reference = "",
    suspect: side_options.Suspect,
    reference_commit: side_options.ReferenceCommit = "",
    reference_args: side_options.ReferenceArgs = "",
    suspect_args: side_options.SuspectArgs = "",
    reference_env: side_options.ReferenceEnv = [],
    suspect_env: side_options.SuspectEnv = [],
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
    engine: str = typer.Option(
        AUTO, metavar="auto|native|dispatch", help="Who observes operators, with the same events: native where an NVIDIA card is."
    ),
    compiled: str = typer.Option(
        AUTO,
        metavar="auto|kernels|probes|eager",
        help="How regions of torch.compile are observed: as they are, kernel by kernel, where that can be.",
    ),
    semantic: side_options.Semantic = [],
    callsites: side_options.Callsites = [],
    stop_on_contract: bool = typer.Option(
        False, "--stop-on-contract", help="End both as soon as settings that change arithmetic are seen to differ."
    ),
    python: side_options.Python = "",
    timeout: float = typer.Option(None, metavar="S", help="Seconds each side may run.", show_default=False),
    out: str = typer.Option("", metavar="DIR", help="Folder for the results: absent or empty, outside both sides."),
    filters: str = typer.Option("", metavar="FILE", help="Apply the benign filters of this file, see `opguard-harness filters`."),
    as_json: side_options.AsJson = False,
) -> Outcome:
    """Translate options into a request, and the answer into text."""
    from opguard_core.plan.callsites import parse_callsites
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
        semantic=tuple(semantic),
        callsites=parse_callsites(callsites),
    )
    request = CompareRequest(
        *sides,
        capture=replace(
            capture,
            engine=engine,
            compiled=compiled,
            stop_on_contract=stop_on_contract,
            attached=True,
        ),
        argv=tuple(argv) if argv else None,
        out=Path(out) if out else None,
        narrow=narrow,
        filters=filters_named(filters),
    )
    answer = pipeline.compare(request, Progress())
    return Outcome(dumps(answer) if as_json else "\n".join(short_answer(answer)), verdict=answer["verdict"])
