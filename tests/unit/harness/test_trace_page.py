"""`trace DIR` says what is inside, whole or not."""

import json

import pytest

from opguard_harness.__main__ import main
from tests.support.synthetic import GptShape, gpt, write_run


@pytest.fixture
def trace(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return write_run(tmp_path / "trace", gpt(GptShape(layers=1, steps=2)), coverage={"gaps": {"conj": {"count": 3}}})


def shown(capsys, *words, code=0):
    assert main(["trace", *map(str, words)]) == code
    return capsys.readouterr().out


def test_a_whole_trace_is_counted(trace, capsys):
    facts = json.loads(shown(capsys, trace, "--json"))
    assert facts["complete"] is True
    assert facts["events"] == sum(facts["per_rank"][0]["kinds"].values())
    assert facts["tensors"] > facts["events"]
    page = shown(capsys, trace)
    assert f"holds      {facts['events']} events, {facts['tensors']} tensors" in page
    assert "not seen: gaps" in page


def test_a_relative_name_and_one_without_a_slash_work(trace, capsys, monkeypatch):
    monkeypatch.chdir(trace.parent)
    assert "holds" in shown(capsys, "trace")
    assert "holds" in shown(capsys, "./trace")


def test_a_torn_trace_without_manifests_still_says_what_it_has(trace, capsys):
    (trace / "manifest.json").unlink()
    (trace / "rank-00000" / "manifest.json").unlink()
    segment = sorted((trace / "rank-00000").glob("events*"))[0]
    segment.write_bytes(segment.read_bytes()[:100])
    page = shown(capsys, trace)
    assert "captured   unknown, mode unknown, end unknown" in page
    assert "incomplete" in page
    assert "stops early" in page
    assert json.loads(shown(capsys, trace, "--json"))["complete"] is False


def test_a_newer_trace_is_refused(trace, capsys):
    (trace / "rank-00000" / "manifest.json").write_text('{"format": 99}')
    assert main(["trace", str(trace)]) == 2
    assert "[unsupported-trace-version]" in capsys.readouterr().err


def test_what_is_no_trace_is_an_error(tmp_path, capsys):
    assert main(["trace", str(tmp_path), "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["slug"] == "side-not-found"
