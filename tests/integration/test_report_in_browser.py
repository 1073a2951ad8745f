"""The report's page in a real browser, from ``file://`` and without a network: it opens rows, obeys keys, and runs nothing of anybody's."""

import json
from pathlib import Path

import pytest

from opguard_harness.report.progress import Silent
from opguard_harness.tools.align import AlignArguments, align
from opguard_harness.tools.reports import WriteReportArguments, write_report
from opguard_harness.workspace.cases import open_or_resume
from tests.support.browser import browser, require_browser
from tests.support.hostile import CANARY, hostile_runs

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

SYMPTOM = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>"
CONTRAST = """
const seen = [];
const parse = (text) => text.match(/[\\d.]+/g).map(Number);
const light = ([r, g, b]) => {
  const part = [r, g, b].map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
  return 0.2126 * part[0] + 0.7152 * part[1] + 0.0722 * part[2];
};
const behind = (node) => {
  for (let at = node; at; at = at.parentElement) {
    const colour = parse(getComputedStyle(at).backgroundColor);
    if (colour.length < 4 || colour[3] === 1) return colour;
  }
  return [255, 255, 255];
};
const kinds = "h1, h2, p, dt, dd, .lead, .muted, .side, .how, .op, .seq, .digest, .ev, .verdict, mark, th";
for (const node of document.querySelectorAll(kinds)) {
  if (!node.textContent.trim() || !node.offsetParent || node.closest("pre .line.hit")) continue;
  let shade = 1;
  for (let at = node; at; at = at.parentElement) shade *= Number(getComputedStyle(at).opacity);
  if (shade < 1) continue;
  const pair = [light(parse(getComputedStyle(node).color)), light(behind(node))].sort((a, b) => b - a);
  const ratio = (pair[0] + 0.05) / (pair[1] + 0.05);
  if (ratio < 4.5) seen.push([node.className || node.tagName, ratio.toFixed(2)]);
}
return seen;
"""


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A report full of hostile names, as a file."""
    require_browser()
    base = tmp_path_factory.mktemp("browser")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(base / "state"))
        found = align(AlignArguments(*map(str, hostile_runs(base / "root"))), Silent())
        case, _ = open_or_resume(base / "root", SYMPTOM)
        result = write_report(WriteReportArguments(case.id, comparison=found.comparison))
    return Path(result.page["path"]), json.loads(Path(result.data["path"]).read_text())


@pytest.fixture
def page(written, tmp_path):
    with browser(tmp_path / "profile") as window:
        window.get(written[0].as_uri())
        yield window


def row(window, name="tr.r.pivot"):
    return window.find_element("css selector", name)


def test_nothing_is_asked_of_the_network_and_nothing_is_refused_by_the_policy(page, written):
    asked = []
    for entry in page.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent" and not message["params"]["documentURL"].startswith("chrome"):  # its own tab
            asked.append(message["params"]["request"]["url"])
    assert asked == [written[0].as_uri()]
    assert page.get_log("browser") == []
    assert page.title.startswith("diverged: OpGuard report of ")
    assert page.find_elements("css selector", "img, iframe, object, embed, form, base, link") == []
    assert page.execute_script("return document.scripts.length") == 2


def test_a_script_that_is_not_ours_does_not_run(page):
    page.execute_script(
        "const own = document.createElement('script'); own.textContent = 'document.title = \"taken\"'; document.body.append(own);"
        "const link = document.createElement('img'); link.src = 'https://example.invalid/x.png'; document.body.append(link);"
    )
    assert page.title != "taken"
    refused = " ".join(entry["message"] for entry in page.get_log("browser"))
    assert "Content Security Policy" in refused
    assert "script-src" in refused


def test_the_pivot_is_open_and_shows_tensors_both_sources_and_stacks(page, written):
    model = written[1]
    inside = page.find_element("css selector", "tr.r.pivot + tr.inside")
    assert inside.is_displayed()
    said = inside.get_attribute("textContent")
    for side in ("reference", "suspect"):
        event = model["pivot"]["boundary"][side]
        assert event["id"] in said
        assert event["operator"] in said
    for slot in model["pivot"]["boundary"]["slots"]:
        assert slot["suspect"]["digest"] in said
    assert CANARY in said
    assert len(inside.find_elements("css selector", "article.card")) == 2
    assert len(inside.find_elements("css selector", "pre.source")) == 2
    assert len(inside.find_elements("css selector", "ol.stack")) == 2


def test_a_click_opens_a_row_and_another_one_closes_it(page):
    first = row(page, "tr.r.same")
    opener = first.find_element("css selector", "button.opener")
    assert opener.get_attribute("aria-expanded") == "false"
    page.execute_script("arguments[0].scrollIntoView({block: 'center'})", first)
    first.find_element("css selector", "td:nth-child(2)").click()
    assert opener.get_attribute("aria-expanded") == "true"
    inside = page.find_element("id", opener.get_attribute("aria-controls"))
    assert inside.is_displayed()
    opener.click()
    assert opener.get_attribute("aria-expanded") == "false"
    assert not inside.is_displayed()


def test_the_keyboard_alone_is_enough(page):
    from selenium.webdriver.common.keys import Keys

    def at():
        return page.execute_script("return document.activeElement.closest('tr.r')?.id")

    page.find_element("xpath", "//button[text()='First difference']").send_keys(Keys.ENTER)
    pivot = row(page).get_attribute("id")
    assert at() == pivot
    page.switch_to.active_element.send_keys(Keys.ARROW_UP)
    assert int(at()[1:]) == int(pivot[1:]) - 1
    assert page.switch_to.active_element.get_attribute("aria-expanded") == "false"
    page.switch_to.active_element.send_keys(Keys.ENTER)
    assert page.switch_to.active_element.get_attribute("aria-expanded") == "true"
    page.switch_to.active_element.send_keys(Keys.ESCAPE)
    assert page.switch_to.active_element.get_attribute("aria-expanded") == "false"
    page.switch_to.active_element.send_keys("n")
    assert at() == pivot
    page.switch_to.active_element.send_keys("n")
    assert int(at()[1:]) > int(pivot[1:])
    page.switch_to.active_element.send_keys("p")
    assert at() == pivot
    assert len(page.find_elements("css selector", ".opener[tabindex='0']")) == 1


def test_rows_can_be_narrowed_to_what_differs_and_searched(page):
    def shown():
        return [entry.get_attribute("class") for entry in page.find_elements("css selector", "tr.r") if entry.is_displayed()]

    everything = len(shown())
    only = page.find_element("xpath", "//button[text()='Only what differs']")
    only.click()
    assert only.get_attribute("aria-pressed") == "true"
    left = shown()
    assert 0 < len(left) < everything
    assert all("differ" in kind or "alone" in kind for kind in left)
    only.click()
    assert len(shown()) == everything
    page.find_element("css selector", "input[type=search]").send_keys("no such operator anywhere")
    assert shown() == []
    assert page.find_element("css selector", "[role=status]").text == f"0 of {everything} rows"


@pytest.mark.parametrize("dark", [False, True])
def test_texts_stand_out_enough_in_light_and_dark(written, tmp_path, dark):
    with browser(tmp_path / "profile", dark=dark) as window:
        window.get(written[0].as_uri())
        assert window.execute_script(CONTRAST) == []


@pytest.mark.parametrize("width", [360, 768, 1280])
def test_no_width_needs_sideways_scrolling_of_the_page(written, tmp_path, width):
    with browser(tmp_path / "profile", width=width) as window:
        window.get(written[0].as_uri())
        assert window.execute_script("return document.documentElement.scrollWidth") <= width


def test_without_scripts_the_page_still_says_it_all(written, tmp_path):
    path, model = written
    with browser(tmp_path / "profile", script=False) as window:
        window.get(path.as_uri())
        said = window.find_element("css selector", "body").text
        assert model["pivot"]["origin"] in said
        for side in ("reference", "suspect"):
            assert model["pivot"]["boundary"][side]["id"] in said
        assert len(window.find_elements("css selector", "tr.r")) == len(model["trace"]["rows"])
        assert not window.find_element("id", "tools").is_displayed()
