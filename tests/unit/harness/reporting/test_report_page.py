"""The HTML page: one file, a policy that lets nothing else in, every text escaped, readable without its script, bounded in size."""

import base64
import copy
import hashlib
import html as standard
import json
import re
from html.parser import HTMLParser
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opguard_harness.report import page as pages
from opguard_harness.report.escape import html, html_attribute, json_island
from opguard_harness.report.markup import Markup, tag
from opguard_harness.report.page import MAX_BYTES, asset, html_page, policy
from opguard_harness.report.page.parts import share
from opguard_harness.report.progress import Silent
from opguard_harness.tools.align import AlignArguments, align
from opguard_harness.workspace.cases import open_or_resume
from opguard_harness.workspace.reporting.confidence import confidence
from opguard_harness.workspace.reporting.files import gather
from tests.support.hostile import BREAKOUTS, CANARY, HIDDEN, ORDER, hostile_runs

HOSTILE = f"</script><script>alert(1)</script><!-- --> ]]> \" ' ` & <img src=x onerror=alert(1)> {BREAKOUTS}{HIDDEN}{ORDER}"
ELEMENTS = set(
    "html head meta title style body a abbr header p h1 h2 h3 h4 span nav section main div ul li dl dt dd article pre mark table caption "
    "thead tbody tr th td code ol br strong em figure figcaption svg rect footer script".split()
)


class Reader(HTMLParser):
    """Elements and attributes that a browser would see."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.elements, self.attributes, self.open, self.texts, self.scripts = [], [], [], [], []
        self.feed(text)

    def handle_starttag(self, name, attributes):
        self.elements.append(name)
        self.attributes += [(name, *pair) for pair in attributes]
        if name not in ("meta", "br"):
            self.open.append(name)

    def handle_startendtag(self, name, attributes):
        self.elements.append(name)
        self.attributes += [(name, *pair) for pair in attributes]

    def handle_endtag(self, name):
        assert self.open.pop() == name

    def handle_data(self, data):
        (self.scripts if self.open and self.open[-1] == "script" else self.texts).append(data)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    base = tmp_path_factory.mktemp("page")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(base / "state"))
        found = align(AlignArguments(*map(str, hostile_runs(base / "root"))), Silent())
        case, _ = open_or_resume(base / "root", HOSTILE)
        return gather(case, found.comparison).model


@pytest.fixture(scope="module")
def text(model):
    return html_page(model)


def test_the_policy_names_the_one_style_and_the_one_script_of_the_page(text):
    def digest(data):
        return base64.b64encode(hashlib.sha256(data.encode()).digest()).decode()

    (style,) = re.findall(r"<style>(.*?)</style>", text, re.S)
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.S)
    told = standard.unescape(re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)[1])
    assert told == policy()
    assert told.split("; ") == [
        "default-src 'none'",
        f"style-src 'sha256-{digest(style)}'",
        f"script-src 'sha256-{digest(script)}'",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    assert text.index("Content-Security-Policy") < text.index("<style>")


def test_the_page_asks_for_nothing_and_parses_nothing_as_html(text):
    found = Reader(text)
    assert set(found.elements) <= ELEMENTS
    names = {name for _, name, _ in found.attributes}
    assert not names & {"src", "srcset", "style", "srcdoc", "action", "formaction", "data", "poster", "xlink:href"}
    assert not [name for name in names if name.startswith("on")]
    assert all(value.startswith("#") for _, name, value in found.attributes if name == "href")
    for word in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "Function(",
        "import(",
        "fetch(",
        "XMLHttpRequest",
    ):
        assert word not in asset("page.js")
    for word in ("@import", "url(", "expression("):
        assert word not in asset("page.css")
    assert "</" not in asset("page.js")
    assert "</" not in asset("page.css")


def test_hostile_names_are_text_and_nothing_else(model, text):
    found = Reader(text)
    assert found.open == []
    assert found.elements.count("script") == 2
    assert not set(found.elements) & {"img", "iframe", "object", "embed", "link", "base", "form"}
    assert CANARY in "".join(found.texts)
    assert "\x1b" not in text
    assert not re.search("[\u202a-\u202e\u2066-\u2069\u200b\ufeff\u2028]", text)
    island = json.loads(found.scripts[0])
    assert island["rows"] == model["trace"]["rows"]
    assert "<" not in found.scripts[0]


def test_all_essentials_are_in_the_markup_without_the_script(model, text):
    said = " ".join("".join(Reader(text).texts).split())
    boundary = model["pivot"]["boundary"]
    essentials = [
        model["verdict"],
        model["pivot"]["origin"],
        model["pivot"]["means"],
        *(boundary[side]["id"] for side in ("reference", "suspect")),
    ]
    essentials += [slot[side]["digest"] for slot in boundary["slots"] for side in ("reference", "suspect")]
    essentials += [item["text"] for item in model["confidence"]] + [model["comparison"]["id"], model["comparison"]["answer_sha256"]]
    essentials += [item["key"] for item in model["contract"]] + [item["command"] for item in model["again"]]
    for essential in essentials:
        assert " ".join(essential.split()) in said


def test_an_operator_whose_place_is_not_recorded_is_not_called_missing(model):
    placeless = copy.deepcopy(model)
    placeless["pivot"]["boundary"]["reference"]["frame"] = None
    placeless["pivot"]["boundary"]["suspect"] = None
    said = " ".join("".join(Reader(html_page(placeless)).texts).split())
    assert "reference no place is recorded" in said
    assert "suspect no such operator" in said


@pytest.mark.parametrize(
    ("part", "whole", "told"),
    [(0, 4, "0.00%"), (1, 4, "25.00%"), (1, 10**6, "under 0.01%"), (10**6 - 1, 10**6, "over 99.99%"), (4, 4, "100.00%")],
)
def test_a_share_is_nothing_or_all_only_where_it_is(part, whole, told):
    assert share(part, whole) == told


def test_partners_are_told_rounded_down_and_not_at_all_where_nothing_is_paired(model):
    answer = {"compared": {"paired_share": {"reference": 0.99996, "suspect": 0.957}}, "pivot": None, "contract": [], "filters": [],
              "reasons": [], "prefix": {"pairs": 1, "tensors": 1, "bytes": 4}}  # fmt: skip
    assert "Boundaries that found a partner: 99.9% of the reference's, 95.7% of the suspect's." in [
        item["text"] for item in confidence(answer, None)
    ]
    answer["compared"] = {"paired_share": {"reference": None, "suspect": None}}
    assert not [item for item in confidence(answer, None) if "partner" in item["text"]]


def test_headings_go_down_one_level_at_a_time_and_links_lead_somewhere(text):
    found = Reader(text)
    levels = [int(name[1]) for name in found.elements if re.fullmatch(r"h[1-6]", name)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    names = [value for _, name, value in found.attributes if name == "id"]
    assert len(names) == len(set(names))
    assert {value[1:] for _, name, value in found.attributes if name == "href"} <= set(names)
    labelled = {value for _, name, value in found.attributes if name == "aria-labelledby"}
    assert labelled <= set(names)


def test_a_huge_report_is_a_page_of_bounded_size_that_says_what_it_leaves_out(model):
    huge = copy.deepcopy(model)
    row = {**huge["trace"]["rows"][0], "what": []}
    row["slots"] = [{**row["slots"][0]} for _ in range(24)] if row["slots"] else []
    huge["trace"]["rows"] += [row] * 2_000
    finding = {"id": "finding-000000000000", "claim": "c" * 1_000, "basis": "observed", "recorded": "", "unchecked": [], "evidence": []}
    huge["findings"] = [finding] * 9_000
    text = html_page(huge)
    assert len(text.encode()) <= MAX_BYTES
    said = "".join(Reader(text).texts)
    shown = text.count('class="r ')
    assert f"{len(huge['trace']['rows']) - shown:,} rows were left out" in said
    assert "more findings in report.md and report.json" in said
    assert 'class="r differ pivot near"' in text


def test_a_report_that_does_not_fit_at_all_is_no_page(model, monkeypatch):
    monkeypatch.setattr(pages, "MAX_BYTES", 1_000)
    with pytest.raises(ValueError, match="does not fit"):
        html_page(model)


# -- escapes -----------------------------------------------------------------------------------------------------------


@given(st.text())
@settings(max_examples=60)
def test_a_text_between_tags_is_read_back_as_what_the_terminal_shows(given_text):
    found = Reader(f"<p>{html(given_text)}</p>")
    assert found.elements == ["p"]
    assert found.open == []
    assert standard.unescape(html(given_text)) == "".join(found.texts)


@given(st.text())
@settings(max_examples=60)
def test_a_text_in_an_attribute_never_leaves_it(given_text):
    found = Reader(f'<p title="{html_attribute(given_text)}" class="x">y</p>')
    assert [name for _, name, _ in found.attributes] == ["title", "class"]
    assert found.texts == ["y"]
    assert "\n" not in html_attribute(given_text)


@given(
    st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))
)
@settings(max_examples=60)
def test_an_island_is_the_same_json_and_holds_no_markup(value):
    island = json_island(json.dumps(value))
    assert json.loads(island) == value
    assert not set("<>&") & set(island)


def test_an_island_that_is_not_ascii_is_refused():
    with pytest.raises(ValueError, match="ASCII"):
        json_island('"\u2028"')


def test_elements_escape_their_texts_and_attributes():
    assert (
        tag("p", HOSTILE[:10], [Markup("<b>"), None], class_='"', hidden=True, id=None).text
        == '<p class="&quot;" hidden>&lt;/script&gt;&lt;<b></p>'
    )
