"""`--callsites`: its words, and its place in what two runs agree on."""

from dataclasses import replace
from pathlib import Path

import pytest

from opguard_core.errors import ConflictingOptions, UnknownOption
from opguard_core.launch.command import parse
from opguard_core.plan.callsites import parse_callsites
from opguard_core.plan.command import launch_argv
from opguard_core.plan.document import Plan, load_plan
from opguard_core.plan.orders import PLAN_NAME, Orders, read_orders
from opguard_harness.compare.planned import capture_under
from opguard_harness.compare.request import CaptureRequest

ORDERS = Orders(["python", "train.py"], "/w")
PLAN = Plan("full", None, False, (), {})


def test_patterns_are_sorted_each_once_and_may_stand_between_commas():
    assert parse_callsites(["my_ext.*, auto", "auto", "a_b.c[12]?"]) == ("a_b.c[12]?", "auto", "my_ext.*")
    assert parse_callsites([]) == parse_callsites(["", " , "]) == ()


@pytest.mark.parametrize("text", ["my ext", "../x", "a;b", "-x", "1a", "x" * 201, "a\nb"])
def test_what_names_no_callee_is_refused(text):
    with pytest.raises(UnknownOption, match="names no callees"):
        parse_callsites([text])


def test_the_launcher_gets_what_was_asked_and_the_orders_keep_it(tmp_path):
    words = launch_argv("python", tmp_path / "out", ["python", "train.py"], callsites=("auto", "my_ext.*"))
    options = parse(words[words.index("run") :])
    assert options.callsites == ("auto", "my_ext.*")
    orders = replace(ORDERS, callsites=options.callsites)
    (tmp_path / PLAN_NAME).write_bytes(orders.to_json())
    assert read_orders(tmp_path) == orders
    # The bootstrap looks for just this.
    assert b'"callsites":["' in orders.to_json()
    assert b'"callsites":["' not in replace(ORDERS, argv=['"callsites":["']).to_json()


def test_runs_that_observe_other_callees_do_not_have_the_same_plan():
    hashes = {replace(ORDERS, callsites=patterns).plan_hash for patterns in ((), ("auto",), ("my_ext.*",))}
    assert len(hashes) == 3
    assert replace(ORDERS, callsites=("a", "b")).plan_hash == replace(ORDERS, callsites=("b", "a")).plan_hash
    assert len({replace(PLAN, callsites=patterns).hash for patterns in ((), ("auto",), ("my_ext.*",))}) == 3


def test_a_plan_keeps_its_patterns_and_fixes_them(tmp_path):
    path = tmp_path / "plan.json"
    replace(PLAN, callsites=("auto",)).save(path)
    assert load_plan(path).callsites == ("auto",)
    how = {"mode": None, "steps": None, "deterministic": False, "python": None, "timeout_s": None}
    assert capture_under(path, **how).callsites == ("auto",)
    assert capture_under(path, **how, callsites=("auto",)).callsites == ("auto",)
    assert capture_under(None, **how, callsites=("my_ext.*",)).callsites == ("my_ext.*",)
    with pytest.raises(ConflictingOptions, match="callsites"):
        capture_under(path, **how, callsites=("my_ext.*",))


def test_a_mode_that_looks_at_no_call_is_refused():
    with pytest.raises(ConflictingOptions, match="sentinel"):
        CaptureRequest(mode="sentinel", callsites=("auto",))
    with pytest.raises(ConflictingOptions, match="sentinel"):
        parse(["run", "--out", str(Path("/x")), "--mode", "sentinel", "--callsites", "auto", "--", "python", "train.py"])
