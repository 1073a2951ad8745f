"""The last look at a result: our voice quotes nobody but the caller, on one visible line."""

import pytest

from opguard_core.errors import EvidenceNotFound, NothingCaptured, OpGuardError, PlanError, TraceFormatError
from opguard_harness.access.results import SUMMARY_CHARS, TEXT_CHARS, error_data, error_summary, guarded, sentence
from opguard_harness.errors import FiltersDamaged, Internal, InvalidArguments, JobNotFound, OutsideRoots
from tests.support.hostile import BREAKOUTS, CANARY, HIDDEN, ORDER


@pytest.mark.parametrize("kind", [EvidenceNotFound, NothingCaptured, PlanError, TraceFormatError, FiltersDamaged, Internal, OpGuardError])
def test_an_error_that_may_quote_a_file_or_a_program_is_summed_up_by_its_kind(kind):
    error = kind(f"{ORDER}{BREAKOUTS}{HIDDEN} token=hunter2hunter2")
    said = error_summary(error)
    assert CANARY not in said
    assert said.isprintable()
    assert "`error` says" in said


@pytest.mark.parametrize("kind", [InvalidArguments, OutsideRoots, JobNotFound])
def test_an_error_about_the_call_itself_says_it(kind):
    said = error_summary(kind(f"there is no {HIDDEN} 'cmpare-1'; password=hunter2hunter2"))
    assert "'cmpare-1'" in said
    assert "hunter2" not in said
    assert said.isprintable()


def test_the_text_of_an_error_is_data():
    known = error_data({"slug": "system", "text": f"{HIDDEN} api_key=hunter2hunter2\nnext line", "fix": "x" * 10_000})
    assert known["slug"] == "system"
    assert "hunter2" not in known["text"]
    assert known["text"].endswith("\nnext line")
    assert known["text"].replace("\n", "").isprintable()
    assert len(known["fix"]) < TEXT_CHARS + 50
    assert "[8000 characters cut]" in known["fix"]


def test_a_summary_is_one_visible_line():
    assert sentence("a\n\tb  c\x1b[31m\u202e") == "a b c\\x1b[31m\\u202e"
    assert len(sentence("x" * 10_000_000)) == SUMMARY_CHARS


def test_a_result_is_guarded_whatever_its_tool_did():
    result = {
        "summary": f"found\n{HIDDEN}",
        "next": [{"tool": "t", "arguments": {}, "why": f"why\n{HIDDEN}"}],
        "error": {"slug": "s", "text": "password=hunter2hunter2", "fix": ""},
    }
    seen = guarded(result)
    assert seen["summary"].isprintable()
    assert seen["next"][0]["why"].isprintable()
    assert "hunter2" not in seen["error"]["text"]
