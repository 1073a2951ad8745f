"""The sections below the pivot: damage, spread, settings, filters, what was compared and its limits, findings, how to run it again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opguard_harness.report.markup import Child, Markup, tag
from opguard_harness.report.page.parts import GLYPHS, KINDS, SIDES, WORDS, code, evidence, facts, plural, section, side_name, table
from opguard_harness.report.page.summary import REACHED

_CONTRACT = 120
_NAMES = {
    "reached": "events compared",
    "paired_share": "share with a partner",
    "accounted_share": "share whose results both have",
    "events": "events",
}
_HOLDS = {
    "damage": "what differs in the bytes, as told under Damage",
    "kept": "the list of tensors that were kept",
    "repro": "a program of one file that runs this operator again",
    "log": "what the job printed",
    "result": "the job's result",
}
_NO_LIMIT = "No other limit was found in what was compared. Steps and ranks that are not named above were not compared."
_RESULTS = {
    "same": "its results are equal",
    "differ": "its results differ",
    "unknown": "nobody looked at its results",
    "alone": "one side only",
    "told": "the value leaves for Python or a file",
    "": "",
}
_SEVERITIES = {
    "arithmetic": "changes results",
    "order": "changes the order of work",
    "environment": "surroundings",
    "cosmetic": "not an arithmetic setting",
}


def spread(model: Mapping[str, Any]) -> Markup | None:
    """Who reads the difference, and what it reaches; nothing where nobody followed it."""
    told = model["spread"]
    if told is None:
        return None
    rows = [_reader(item, item["results"]) for item in told["consumers"]]
    more = told["total"] - len(told["consumers"])
    notes: list[Child] = []
    if more > 0:
        notes.append(f"In that step it is read {plural(more, 'more time')}; a list operator reads it once for each tensor.")
    if not told["whole"]:
        notes.append("It was followed in part only: there is more than was looked at.")
    rejoined = told["rejoined"]
    notes.append(_rejoined(told) if rejoined else "In what was followed, no reader of it gives equal results.")
    reached = [
        tag("li", f"{REACHED.get(item['what'], item['what'])}: first ", code(item["operator"]), " ", _at(item)) for item in told["reached"]
    ]
    state = [
        tag("li", f"{plural(item['count'], 'tensor')} of {KINDS.get(item['kind'], item['kind'])}: {_names(item)}") for item in told["state"]
    ]
    return section(
        "spread",
        "How it spreads",
        table(("", "operator", "reads", "where", "evidence"), rows, label="consumers of the difference", class_="readers"),
        [tag("p", note) for note in notes],
        [tag("h3", "What it reaches"), tag("ul", reached, state)] if reached or state else None,
        lead="The boundaries that read the differing bytes, in order, and what became of them.",
    )


def _rejoined(told: Mapping[str, Any]) -> list[Child]:
    """A reader whose results are equal all the same; what goes on beside it is said with it."""
    item = told["rejoined"]
    where: list[Child] = [code(item["operator"]), " ", _at(item)]
    if told["reached"] or told["state"]:
        return ["One branch of it ends: the results of ", *where, " are equal although it reads the difference. Other branches go on."]
    return ["The results of ", *where, " are equal although it reads the difference."]


def _names(item: Mapping[str, Any]) -> str:
    more = item["count"] - len(item["names"])
    return ", ".join(item["names"]) + (f" and {more:,} more" if more > 0 else "")


def _reader(item: Mapping[str, Any], results: str) -> list[Child]:
    glyph = tag("span", tag("span", GLYPHS[results], aria_hidden="true"), f" {_RESULTS[results]}", class_=f"result {results}")
    return [glyph, code(item["operator"]), code(item["slot"]), _at(item), evidence(item["ids"]["suspect"] or item["ids"]["reference"])]


def _at(item: Mapping[str, Any]) -> Markup:
    return tag("span", item["suspect"] or item["reference"] or "no place recorded", class_="place")


def contract(model: Mapping[str, Any]) -> Markup:
    """Settings that the two runs do not share."""
    rows: list[list[Child]] = []
    for item in model["contract"][:_CONTRACT]:
        weight = tag("span", _SEVERITIES[item["severity"]], class_=f"severity {item['severity']}")
        rows.append([weight, code(item["key"]), *(code(item[side]) for side in SIDES)])
    more = len(model["contract"]) - len(rows)
    if not rows:
        return section("contract", "Settings that differ", tag("p", "None: both runs were under the same settings."))
    return section(
        "contract",
        "Settings that differ",
        table(("weight", "setting", side_name("reference"), side_name("suspect")), rows, label="settings that differ"),
        tag("p", f"{more} more are in report.json.") if more > 0 else None,
        lead="Packages, devices, flags, seeds and sources that the two runs do not share. The weight says whether a setting itself changes "
        "arithmetic; sources and seeds are none of those, and may be the cause all the same.",
    )


def filters(model: Mapping[str, Any]) -> Markup:
    """Differences that somebody declared harmless."""
    rules = model["filters"]
    if not rules:
        return section("filters", "Filters used", tag("p", "None. No difference was declared harmless beforehand."))
    rows: list[list[Child]] = []
    for rule in rules:
        where: list[Child] = [code(rule["operator"]), " ", code(rule["slot"])]
        rows.append([code(rule["id"]), where, rule["reason"], f"{rule['hits']:,}", "refused" if rule["refused"] else ""])
    return section(
        "filters",
        "Filters used",
        table(("filter", "place", "why somebody calls it harmless", "hidden", ""), rows, label="filters"),
    )


def compared(model: Mapping[str, Any]) -> Markup:
    """What was compared, where that ends, and what was not seen."""
    comparison, facts_told, prefix = model["comparison"], model["compared"], model["prefix"]
    rows = [(side, comparison[side]) for side in SIDES]
    names = ("command", "folder", "trace", "digest", "created", "python", "platform", "exit", "ranks", "events", "reached", "tensors")
    sides = [[_NAMES.get(name, name), *(_fact(told[name]) for _, told in rows)] for name in names]
    limits = [tag("li", model["limit"])] if model["limit"] else []
    limits += [tag("li", text) for text in _ends(model)]
    limits += [tag("li", code(reason["slug"]), f": {reason['text']} ", tag("em", reason["fix"])) for reason in model["reasons"]]
    limits += [tag("li", f"The {side}'s trace stops early.") for side, told in rows if told["torn"]]
    gaps = [(side, rank, told) for side, ranks in model["coverage"].items() if isinstance(ranks, dict) for rank, told in ranks.items()]
    unseen = [tag("li", side_name(side), f" rank {rank}: {text}") for side, rank, told in gaps if (text := _words(told))]
    return section(
        "compared",
        "What was compared, and its limits",
        facts(
            [
                ("mode", comparison["mode"]),
                ("equal before", f"{prefix['pairs']:,} pairs, {prefix['tensors']:,} tensors, {prefix['bytes']:,} bytes"),
                *((_NAMES.get(key, key.replace("_", " ")), _words(value)) for key, value in facts_told.items()),
                *((f"scope: {key}", _words(value)) for key, value in model["scope"].items()),
            ]
        ),
        table(("", side_name("reference"), side_name("suspect")), sides, label="the two runs", class_="named"),
        tag("h3", "Limits"),
        tag("ul", limits) if limits else tag("p", _NO_LIMIT),
        tag("h3", "What was not seen"),
        tag("ul", unseen) if unseen else tag("p", "No gap is recorded in either trace."),
    )  # fmt: skip


def _ends(model: Mapping[str, Any]) -> list[str]:
    """Where the comparison ends, and how much of each recording came before that."""
    found, sides = model["pivot"], [(side, model["comparison"][side]) for side in SIDES]
    if found is None:
        return []
    totals = ", ".join(f"{told['reached']:,} of the {side}'s {told['events']:,}" for side, told in sides)
    ends = f"The comparison ends with step {found['step']}, that of the first difference. Recorded events up to there: {totals}."
    return [f"{ends} Nothing is said about what comes after that."]


def _fact(value: Any) -> Child:
    if isinstance(value, list):
        return code(" ".join(str(item) for item in value))
    return (
        f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else code("unknown" if value in (None, "") else str(value))
    )


def _words(value: Any) -> str:
    """A plain value in words; nothing where it says nothing."""
    if isinstance(value, dict):
        return "; ".join(f"{key} {text}" for key, item in value.items() if (text := _words(item)))
    if isinstance(value, list):
        return ", ".join(_words(item) for item in value)
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return "" if value is None else str(value)


def findings(model: Mapping[str, Any], most: int) -> Markup:
    """Claims with their basis and citations."""
    found = model["findings"]
    if not found:
        return section("findings", "Findings", tag("p", "None was recorded."))
    items = [
        tag(
            "li",
            tag("p", item["claim"]),
            tag("p", tag("span", item["basis"], class_="basis"), " ", code(item["id"], "ev"), class_="extra"),
            tag("ul", [tag("li", evidence(one["id"]), " ", _quote(one)) for one in item["evidence"]], class_="cited")
            if item["evidence"]
            else tag("p", "Nothing here was seen by us.", class_="extra"),
            tag("p", "Not checked, for nothing it cites says so: ", code(", ".join(item["unchecked"])), class_="extra")
            if item["unchecked"]
            else None,
        )
        for item in found[:most]
    ]
    more = len(found) - len(items)
    return section(
        "findings",
        "Findings",
        tag("ol", items, class_="findings"),
        tag("p", f"{plural(more, 'more finding')} in report.md and report.json.") if more > 0 else None,
        lead="What was claimed in this case, and what each rests on. Every citation was looked up and read again.",
    )


def _quote(cited: Mapping[str, Any]) -> str:
    """What a citation says; of a whole file, whose quote is its size alone, what it holds."""
    held = _HOLDS.get(str(cited["id"]).rpartition("/")[2], "") if str(cited["id"]).startswith("job:") else ""
    return f"{cited['quote']}: {held}" if held else str(cited["quote"])


def again(model: Mapping[str, Any]) -> Markup:
    """Command lines that repeat the work."""
    items = []
    for item in model["again"]:
        command = tag("pre", code(item["command"]), class_="command", tabindex="0", aria_label=item["what"])
        items.append(tag("li", tag("p", f"To {item['what']}:"), command, tag("p", item["note"], class_="extra") if item["note"] else None))
    return section("again", "Run it again", tag("ul", items, class_="calls"))


def words() -> Markup:
    """What the words of the page mean."""
    return section("words", "Words", facts(list(WORDS.items())))
