"""Options become requests, or one clear error."""

import pytest

from opguard_core.errors import ConfigError, UnknownOption
from opguard_harness.compare.request import CaptureRequest, split_env, split_words, steps_of


def test_words_split_as_in_a_shell():
    assert split_words("--lr '1 2' x", "--suspect-args") == ("--lr", "1 2", "x")
    with pytest.raises(ConfigError, match="--suspect-args"):
        split_words("'open", "--suspect-args")


def test_variables_need_a_name_and_an_equals_sign():
    assert split_env(["A=1", "B=x=y", "A=2", "C="], "--reference-env") == {"A": "2", "B": "x=y", "C": ""}
    for wrong in ("A", "=1", ""):
        with pytest.raises(ConfigError, match="K=V"):
            split_env([wrong], "--reference-env")


def test_steps_are_half_open():
    assert steps_of("") is None
    assert steps_of("2:5") == (2, 5)
    for wrong in ("5:2", "3:3", "a:b", "3", "-1:2", ":"):
        with pytest.raises(ConfigError):
            steps_of(wrong)


def test_a_mode_or_a_limit_that_cannot_be_honoured_is_refused():
    with pytest.raises(UnknownOption, match="telescope"):
        CaptureRequest(mode="telescope")
    for timeout in (0.0, -1.0, float("nan")):
        with pytest.raises(ConfigError, match="--timeout"):
            CaptureRequest(timeout_s=timeout)
