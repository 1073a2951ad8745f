"""The set of commands and options is a frozen list: a change here is a change of the public interface."""

from typer.main import get_command

from opguard_harness.cli.app import app

FROZEN = {
    "call": ["--json", "JSON", "NAME"],
    "compare": [
        "--deterministic",
        "--json",
        "--mode",
        "--out",
        "--python",
        "--reference",
        "--reference-args",
        "--reference-commit",
        "--reference-env",
        "--steps",
        "--suspect",
        "--suspect-args",
        "--suspect-env",
        "--timeout",
        "-- ARGV...",
    ],
    "demo": ["--json", "--mode", "--out", "--python"],
    "doctor": ["--json", "--python"],
    "explain": ["[TOPIC]"],
    "tools": ["--json"],
    "trace": ["--json", "DIR"],
}


def names(command):
    found = []
    for parameter in command.params:
        options = [option for option in parameter.opts if option.startswith("--")]
        found += options or [parameter.metavar]
    return sorted(set(found) - {"--help"})


def test_commands_and_options_are_the_documented_ones():
    commands = get_command(app).commands
    assert {name: names(command) for name, command in commands.items()} == {name: sorted(options) for name, options in FROZEN.items()}


def test_every_option_says_what_it_does():
    for name, command in get_command(app).commands.items():
        assert command.help, name
        for parameter in command.params:
            assert parameter.help, f"{name} {parameter.name}"
