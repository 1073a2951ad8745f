"""An answer's coverage says who observed, at which level of compiled code, and why."""

from types import SimpleNamespace

from opguard_core.certify.observed import observed


def told(**engines):
    return observed(SimpleNamespace(engines=engines))


def test_the_engine_is_told_with_why_no_other():
    assert told(dispatch={"active": True, "why_not_native": "no NVIDIA card"}) == {
        "engine": "dispatch",
        "why": "not native: no NVIDIA card",
    }
    assert told(native={"active": True}, launches={"active": False}) == {"engine": "native"}
    assert told() == {}


def test_the_level_of_compiled_code_is_told_with_what_it_cannot_see():
    part = {"part": "forward", "unseen": "one C++ function"}
    regions = [{"region": "forward#0", "parts": [part, part, {"part": "backward", "unseen": ""}]}]
    found = told(native={}, compiled={"active": True, "level": "kernels", "why": "asked for", "launches": 3, "regions": regions})
    assert found["compiled"] == {"level": "kernels", "why": "asked for", "launches": 3, "unseen": ["forward#0: one C++ function"]}


def test_a_pattern_of_calls_that_named_none_is_told():
    calls = {"patterns": ["auto", "my_ext.*", "mistyped.*"], "observed": [{"operator": "extension.my_ext.scale_"}]}
    assert told(callsites=calls)["callsites"] == {"patterns": calls["patterns"], "places": 1, "unused": ["mistyped.*"]}
    assert told(callsites={"patterns": ["all"], "observed": []})["callsites"]["unused"] == []
