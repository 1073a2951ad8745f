"""`preflight` as a command, with a stand-in for the training Python: its page, its one JSON object, its plan, its errors."""

import json

import pytest

from opguard_core.plan.document import load_plan
from opguard_harness.__main__ import main
from tests.support.fake_training import fake_program, fake_python


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "bin").mkdir()
    return tmp_path


@pytest.fixture
def command(place, capsys):
    python = fake_python(place / "bin")

    def run(name, *words, code=0):
        assert main([name, "--python", str(python), *map(str, words)]) == code, capsys.readouterr()
        return capsys.readouterr()

    return run


def sides(place, reference=None, suspect=None):
    return "--reference", fake_program(place / "a", **(reference or {})), "--suspect", fake_program(place / "b", **(suspect or {}))


def test_the_page_says_everything_in_a_few_lines(place, command):
    said = command("preflight", *sides(place), "--planned-steps", 7, "--plan", place / "plan.json")
    words = [line.split(" ")[0] for line in said.out.splitlines()]
    assert words == ["common", "reference", "suspect", "contract", "cost", "", "basis", "disk", "plan", "next"]
    assert "100.0% of the reference's, 100.0% of the suspect's (data aside); 0 renamed" in said.out
    assert "not timed" in said.out
    assert "for 7 steps fit" in said.out
    assert load_plan(place / "plan.json").hash[:12] in said.out


def test_each_side_runs_once_in_a_copy_and_nothing_stays(place, command):
    words = sides(place, {"writes": "log.txt"}, {"writes": "log.txt"})
    command("preflight", *words)
    assert not (place / "a" / "log.txt").exists()
    assert not (place / "b" / "log.txt").exists()
    assert list((place / "cache" / "opguard" / "scratch").iterdir()) == []
    assert not (place / "state").exists()


def test_settings_that_change_arithmetic_come_first_and_are_warned_of(place, command):
    keys = ("torch.threads", "torch.version", "source.commit")
    contracts = [dict(zip(keys, values, strict=True)) for values in ((1, "2.12", "x"), (2, "2.13", "y"))]
    said = command("preflight", "--json", *sides(place, *({"contract": contract} for contract in contracts)))
    found = json.loads(said.out)
    severities = [item["severity"] for item in found["contract"]]
    assert severities == sorted(severities, key=["arithmetic", "order", "environment", "cosmetic"].index)
    assert severities[0] == "arithmetic"
    assert "changes arithmetic" in found["warnings"][0]


def test_a_side_that_fails_is_warned_of_and_used_as_far_as_it_came(place, command):
    found = json.loads(command("preflight", "--json", *sides(place, None, {"exit": 5}), "--steps", 4).out)
    assert "The suspect ended with 5 after 3 steps." in found["warnings"]
    assert "The reference made 3 steps and ended by itself; 4 were asked for." in found["warnings"]
    assert found["sides"]["reference"]["how"] == "finished"


@pytest.mark.full
def test_a_side_that_hangs_is_cut_and_used_as_far_as_it_came(place, command):
    found = json.loads(command("preflight", "--json", *sides(place, None, {"hang": True}), "--timeout", 25).out)
    assert found["sides"]["suspect"]["how"] == "cut"
    assert found["sides"]["reference"]["how"] == "finished"
    assert "The suspect had made 3 steps when its time was over; it was ended." in found["warnings"]


def test_a_side_without_a_trace_is_an_error(place, command):
    error = json.loads(command("preflight", "--json", *sides(place, {"nothing": True}), code=2).out)["error"]
    assert error["slug"] == "nothing-captured"


def test_stored_traces_are_looked_at_without_running_anything(place, command):
    command("compare", *sides(place), "--out", place / "out")
    words = ["--reference", place / "out" / "reference", "--suspect", place / "out" / "suspect", "--plan", place / "plan.json"]
    found = json.loads(command("preflight", "--json", *words).out)
    assert {side["how"] for side in found["sides"].values()} == {"stored"}
    assert load_plan(place / "plan.json").hash == found["plan"]["hash"]


def test_a_plan_for_later_steps_leaves_the_set_up_out(place, command):
    words = sides(place)
    for name, window in (("all", ()), ("later", ("--window", "5:9"))):
        command("preflight", *words, *window, "--plan", place / name)
    everything, later = load_plan(place / "all"), load_plan(place / "later")
    assert later.steps == (5, 9)
    assert {site.first for site in later.sites} == {0}
    assert 0 < len(later.sites) <= len(everything.sites)
    assert later.hash != everything.hash
    assert later.about["cost"]["planned_steps"] == 4


def test_traces_that_will_not_fit_are_warned_of_and_then_refused(place, command):
    words = sides(place)
    found = json.loads(command("preflight", "--json", *words, "--planned-steps", 10**12, "--plan", place / "plan.json").out)
    assert found["cost"]["fits"] is False
    assert any("larger disk" in text for text in found["warnings"])
    error = json.loads(command("compare", "--json", *words, "--plan", place / "plan.json", "--out", place / "out", code=2).out)["error"]
    assert error["slug"] == "space-short"
    assert not (place / "out").exists()


def test_a_window_that_is_none_is_named_by_its_own_option(place, command):
    error = json.loads(command("preflight", "--json", *sides(place), "--window", "9:5", code=2).out)["error"]
    assert "--window '9:5'" in error["text"]


def test_help_shows_how_to_call_it(capsys):
    assert main(["preflight", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "opguard-harness preflight --reference old/ --suspect new/ -- python train.py\n" in shown
