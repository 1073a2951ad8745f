"""The options of launchers that the rules know are those that the installed launchers have."""

import pytest

from opguard_harness.access.launchers import ACCELERATE, TORCHRUN

pytestmark = pytest.mark.torch


def test_the_tables_are_those_of_torch():
    argparse_of = pytest.importorskip("torch.distributed.run").get_args_parser
    _agree(TORCHRUN, argparse_of(), missing={"use-env"})


def test_the_tables_are_those_of_accelerate():
    _agree(ACCELERATE, pytest.importorskip("accelerate.commands.launch").launch_command_parser(), missing=set())


def _agree(launcher, parser, missing):
    known = {}
    for action in parser._actions:
        for option in action.option_strings:
            known[option.lstrip("-").replace("_", "-") if option.startswith("--") else option] = action.nargs != 0
    for name in launcher.flags - missing:
        assert known[name] is False, name
    for name in launcher.valued:
        assert known[name] is True, name
    assert {name: known[name] for name in launcher.short} == launcher.short
    assert launcher.refused <= known.keys()
