"""The grammar of evidence: one spelling, strict whatever is named."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opguard_core.errors import EvidenceInvalid
from opguard_core.evidence.refs import MAX_NAME_CHARS, STRICT, URI, EventRef, JobRef, SourceRef, is_reference, parse

_TRACE = "0123456789ab"
_NAMES = st.text(st.characters(exclude_characters="\0"), min_size=1, max_size=600).filter(lambda name: name != "~")
"""Any text a run can name a file or slot with, lone surrogates among them."""


@settings(derandomize=True, deadline=None)
@given(name=_NAMES, rank=st.integers(0, 10**6), seq=st.integers(0, 10**17))
def test_a_boundary_is_named_strictly_and_read_back(name: str, rank: int, seq: int) -> None:
    reference = EventRef(_TRACE, rank, seq, name)
    text = str(reference)
    assert STRICT.fullmatch(text)
    found = parse(text)
    assert str(found) == text
    assert isinstance(found, EventRef)
    assert (found.rank, found.seq) == (rank, seq)
    assert found.names(name)


@settings(derandomize=True, deadline=None)
@given(name=_NAMES, first=st.integers(1, 10**6), more=st.integers(0, 100))
def test_source_lines_are_named_strictly_and_read_back(name: str, first: int, more: int) -> None:
    reference = SourceRef(_TRACE, name, first, first + more)
    text = str(reference)
    assert STRICT.fullmatch(text)
    found = parse(text)
    assert str(found) == text
    assert isinstance(found, SourceRef)
    assert (found.first, found.last) == (first, first + more)
    assert found.names(name)


@settings(derandomize=True, deadline=None)
@given(one=_NAMES, other=_NAMES)
def test_short_names_that_differ_have_references_that_differ(one: str, other: str) -> None:
    short = [name for name in (one, other) if len(name.encode("utf-8", "surrogatepass")) * 3 < MAX_NAME_CHARS]
    references = {str(EventRef(_TRACE, 0, 0, name)) for name in short}
    assert len(references) == len(set(short))


def test_the_end_of_a_long_name_is_kept_from_a_whole_character_on() -> None:
    name = "ü" * 400 + "/model.py"
    text = str(SourceRef(_TRACE, name, 1, 2))
    assert "/~%C3%BC" in text
    assert text.endswith("/model.py:1-2")
    assert len(text) < MAX_NAME_CHARS + 40


@pytest.mark.parametrize(
    "text",
    [
        f"ev:{_TRACE}/0/57",
        f"ev:{_TRACE}/0/57/out.0",
        f"ev:{_TRACE}/3/0/param%3Ablocks.0.weight",
        f"src:{_TRACE}/pkg/model.py:3-9",
        "job:compare-0123456789ab-2/result",
        "job:20260102-030405-compare-1a2b3c/answer",
        "job:20260102-030405-compare-1a2b3c/answer/contract.loader.1.sampler_epoch",
    ],
)
def test_what_results_give_is_read(text: str) -> None:
    assert is_reference(text)
    assert str(parse(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "suspect:0:57",
        "ev:",
        "ev:0123456789AB/0/57",
        "ev:0123456789/0/57",
        f"ev:{_TRACE}/00/57",
        f"ev:{_TRACE}/0/-1",
        f"ev:{_TRACE}/0/57/",
        f"ev:{_TRACE}/0/57/a/b",
        f"ev:{_TRACE}/0/57/%6Fut.0",  # another spelling of out.0
        f"ev:{_TRACE}/0/57/%2",
        f"ev:{_TRACE}/0/57/%ff",
        f"ev:{_TRACE}/0/57/%FF",  # no UTF-8
        f"ev:{_TRACE}/0/57 ",
        f"ev:{_TRACE}/0/57\n",
        f"src:{_TRACE}/:1-2",
        f"src:{_TRACE}/a.py:2-1",
        f"src:{_TRACE}/a.py:0-1",
        f"src:{_TRACE}/a.py",
        f"src:{_TRACE}/a b.py:1-2",
        "job:../answer",
        "job:-x/answer",
        "job:a/b/answer/x",
        "job:a/answer/",
        "job:a/answer/contract/x y",
        "job:a/Answer",
        "file:///etc/passwd",
    ],
)
def test_anything_else_is_refused_with_the_grammar(text: str) -> None:
    with pytest.raises(EvidenceInvalid) as caught:
        parse(text)
    assert caught.value.as_dict()["slug"] == "evidence-invalid"
    assert "ev:" in caught.value.as_dict()["fix"]


def test_what_a_job_left_is_named_by_its_id() -> None:
    assert str(JobRef("compare-0123456789ab", "log")) == "job:compare-0123456789ab/log"


@settings(derandomize=True, deadline=None)
@given(name=_NAMES)
def test_a_field_of_a_record_is_named_strictly_and_read_back(name: str) -> None:
    text = str(JobRef("compare-1", "answer", name))
    assert STRICT.fullmatch(text)
    found = parse(text)
    assert str(found) == text
    assert isinstance(found, JobRef)
    assert found.names(name)


@pytest.mark.parametrize("text", [f"ev:{_TRACE}/0/57", f"src:{_TRACE}/a.py:1-2", "job:compare-1/answer/pivot"])
def test_the_resource_that_shows_a_fact_names_it_as_well(text: str) -> None:
    assert parse(f"{URI}{text}") == parse(text)
    assert is_reference(f"{URI}{text}")
