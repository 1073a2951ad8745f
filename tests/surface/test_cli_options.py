"""The set of commands and options is a frozen list: a change here is a change of the public interface."""

from typer.main import get_command

from opguard_harness.cli.app import app

FROZEN = {
    "call": ["--json", "--root", "JSON", "NAME"],
    "compare": [
        "--callsites",
        "--deterministic",
        "--compiled",
        "--engine",
        "--filters",
        "--json",
        "--mode",
        "--narrow",
        "--out",
        "--plan",
        "--python",
        "--reference",
        "--reference-args",
        "--reference-commit",
        "--reference-env",
        "--semantic",
        "--steps",
        "--stop-on-contract",
        "--suspect",
        "--suspect-args",
        "--suspect-env",
        "--timeout",
        "-- ARGV...",
    ],
    "demo": ["--json", "--list", "--mode", "--out", "--python", "[EXAMPLE]"],
    "doctor": ["--json", "--python"],
    "explain": ["[TOPIC]"],
    "filters": ["--filters", "--json"],
    "filters add": ["--apply", "--author", "--evidence", "--filters", "--json", "--reason", "--slot", "COMPARISON"],
    "filters dry-run": ["--filters", "--json", "COMPARISON"],
    "filters list": ["--filters", "--json"],
    "filters remove": ["--filters", "--json", "ID"],
    "mcp": ["--allow-command", "--http", "--python", "--read-only", "--root", "--tools"],
    "install": ["--json", "--project", "--remove", "--scope", "--write", "claude|cursor"],
    "preflight": [
        "--callsites",
        "--deterministic",
        "--json",
        "--mode",
        "--plan",
        "--planned-steps",
        "--python",
        "--reference",
        "--reference-args",
        "--reference-commit",
        "--reference-env",
        "--semantic",
        "--steps",
        "--suspect",
        "--suspect-args",
        "--suspect-env",
        "--timeout",
        "--window",
        "-- ARGV...",
    ],
    "open": ["--approve-filters", "--json", "FILE"],
    "pack": ["--include-sources", "--json", "--out", "CASE"],
    "prune": ["--json", "--older-than", "--yes"],
    "report": ["--check", "--comparison", "--json", "--out", "CASE"],
    "repro": ["--json", "--out", "EVIDENCE|JOB"],
    "tools": ["--json"],
    "timeline": ["--json", "--out", "--steps", "COMPARISON"],
    "trace": ["--json", "DIR"],
}


def names(command):
    found = []
    for parameter in command.params:
        options = [option for option in parameter.opts if option.startswith("--")]
        found += options or [parameter.metavar]
    return sorted(set(found) - {"--help"})


def all_commands(group, before=""):
    """Commands and the commands below them, by their words."""
    for name, command in group.commands.items():
        yield f"{before}{name}", command
        if hasattr(command, "commands"):
            yield from all_commands(command, f"{before}{name} ")


def test_commands_and_options_are_the_documented_ones():
    commands = dict(all_commands(get_command(app)))
    assert {name: names(command) for name, command in commands.items()} == {name: sorted(options) for name, options in FROZEN.items()}


def test_every_option_says_what_it_does():
    for name, command in all_commands(get_command(app)):
        assert command.help, name
        for parameter in command.params:
            assert parameter.help, f"{name} {parameter.name}"
