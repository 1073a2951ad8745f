"""What `.ci/run` may leave out of the official suites is a list with reasons, and a run that did not happen is no pass."""

import re
from pathlib import Path

import pytest

from tests.mcp import conformance

LISTS = [known for _, _, known in conformance.SUITES.values()]
ENTRY = re.compile(r"  - [a-z0-9-]+ # \S.*")


@pytest.mark.parametrize("name", LISTS)
def test_every_scenario_that_may_fail_has_its_reason(name):
    lines = Path(conformance.__file__).with_name(name).read_text().splitlines()
    entries = [line for line in lines if not line.lstrip().startswith("#") and line != "server:"]
    assert entries
    assert [line for line in entries if not ENTRY.fullmatch(line)] == []
    assert len({line.split(" #")[0] for line in entries}) == len(entries)


def test_every_package_is_pinned():
    assert [name for name in conformance.PACKAGES if not re.search(r"@\d+\.\d+\.\d+(-[a-z]+\.\d+)?$", name)] == []


def test_without_npm_it_says_that_nothing_ran(monkeypatch, capsys):
    monkeypatch.setenv("PATH", "/nowhere")
    assert conformance.main([]) == 0
    assert "no npm here" in capsys.readouterr().out


@pytest.mark.parametrize("code", [0, 1], ids=["installs nothing", "fails"])
def test_an_npm_that_installs_nothing_fails_the_check(monkeypatch, capsys, tmp_path, code):
    (tmp_path / "npm").write_text(f"#!/bin/sh\nexit {code}\n")
    (tmp_path / "npm").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert conformance.main([]) == 1
    assert "FAILED" in capsys.readouterr().out
