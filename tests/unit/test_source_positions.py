"""Places of calls in the program's code, whatever the interpreter made of the instructions."""

import sys

from opguard_core.engines.sources import Positions, instruction_of

WARM_UP = 100  # more than an interpreter waits before it specialises


def where():
    return sys._getframe(1).f_lasti


def test_a_call_is_one_place_before_and_after_it_is_specialised():
    def program(function):
        return function(), function()

    found = {tuple(instruction_of(program.__code__, lasti) for lasti in program(where)) for _ in range(WARM_UP)}
    assert len(found) == 1
    (places,) = found
    assert len(set(places)) == 2


def test_both_instructions_of_a_call_are_one():
    code = compile("f(1)", "<made>", "eval")
    places = [lasti for lasti in range(0, len(code.co_code), 2) if instruction_of(code, lasti) != lasti]
    assert len(places) == (1 if sys.version_info[:2] == (3, 11) else 0)
    for lasti in places:
        assert Positions().of(code, lasti) == Positions().of(code, instruction_of(code, lasti))
