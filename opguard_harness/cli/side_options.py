"""Options that name two sides and how they are run: the same words in every command that has them."""

from __future__ import annotations

from typing import Annotated

import typer

Argv = Annotated[list[str] | None, typer.Argument(metavar="-- ARGV...", help="Command line of both programs.", show_default=False)]
Reference = Annotated[str, typer.Option(help="Folder, script or trace that is right.")]
Suspect = Annotated[str, typer.Option(help="Folder, script or trace in question.")]
ReferenceCommit = Annotated[str, typer.Option(metavar="REV", help="Run this commit of the reference folder's repository.")]
ReferenceArgs = Annotated[str, typer.Option(metavar="WORDS", help="Words appended to the reference's command line.")]
SuspectArgs = Annotated[str, typer.Option(metavar="WORDS", help="Words appended to the suspect's command line.")]
ReferenceEnv = Annotated[list[str], typer.Option(metavar="K=V", help="Variable for the reference; may be repeated.")]
SuspectEnv = Annotated[list[str], typer.Option(metavar="K=V", help="Variable for the suspect; may be repeated.")]
Callsites = Annotated[
    list[str],
    typer.Option(metavar="PATTERN", help="Observe calls of native functions that torch does not see: auto, or my_ext.*; repeat for more."),
]
Semantic = Annotated[
    list[str],
    typer.Option(
        metavar="PATTERN", help="Name calls, such as model.layers.*.mlp; PATH=NAME shares a name; package.module:function; repeat for more."
    ),
]
Python = Annotated[str, typer.Option(metavar="PATH", help="Interpreter with torch that runs the programs.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the answer as one JSON object.")]
