"""What makes a setting equal: everything that can change bits has an advice, and a knob speaks for what it holds."""

import fnmatch

import pytest

from opguard_core.contract.fixes import TEXTS, fix_of
from opguard_core.contract.knobs import KNOBS
from opguard_core.contract.spec import RULES


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule.severity in ("arithmetic", "order")], ids=lambda rule: rule.pattern)
def test_whatever_may_change_bits_has_an_advice(rule):
    assert fix_of(rule.pattern.replace("*", "x")).text


@pytest.mark.parametrize(
    ("key", "knob"),
    [
        ("env.PYTHONHASHSEED", "PYTHONHASHSEED"),
        ("env.NCCL_ALGO", "NCCL_ALGO"),
        ("flags.cudnn.benchmark", "torch.backends.cudnn.benchmark"),
        ("flags.deterministic_algorithms", "torch.use_deterministic_algorithms"),
    ],
)
def test_a_knob_speaks_for_the_setting_that_it_holds(key, knob):
    fix = fix_of(key)
    assert fix.knob.name == knob
    assert knob in fix.text
    assert str(next(item.value for item in KNOBS if item.name == knob)) in fix.text


def test_every_knob_is_reached_by_some_key():
    keys = [f"env.{knob.name}" if knob.when == "launch" else "" for knob in KNOBS]
    assert all(fix_of(key).knob is not None for key in keys if key)


def test_what_no_one_has_to_mend_has_no_advice():
    assert fix_of("source.tree").text == ""
    assert fix_of("nobody.knows").text == ""


def test_no_pattern_is_hidden_by_one_before_it():
    patterns = [pattern for pattern, _ in TEXTS]
    for at, pattern in enumerate(patterns):
        assert not any(fnmatch.fnmatchcase(pattern, other) for other in patterns[:at]), pattern


def test_settings_of_a_sampler_have_an_advice_of_their_own():
    keys = ("sampler_epoch", "sampler_seed", "sampler", "generator", "batch_size", "exists")
    assert len({fix_of(f"loader.1.{key}").text for key in keys}) == len(keys)
    assert "set_epoch" in fix_of("loader.0.sampler_epoch").text
