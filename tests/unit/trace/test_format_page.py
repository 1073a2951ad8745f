"""Claims: FORMAT.md and schema.py say the same, and the words FORMAT.md lists are the ones the code uses."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pyarrow as pa
import pytest

from opguard_core.trace import commit, drops, extent, index, intake, manifest, reader, schema, version, writer
from opguard_core.trace.codec import NULLABLE, ROW_TYPES

PAGE = (Path(schema.__file__).parent / "FORMAT.md").read_text()


def section(title: str) -> str:
    return re.split(r"^##+ ", PAGE.split(f"# {title}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]


def rows_of(table: str) -> list[tuple[str, str, str]]:
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \| (yes|no) \| [^|]+ \|$", section(table), re.MULTILINE)
    return [(name, kind.strip(), null) for name, kind, null in rows]


def kind_of(field: pa.Field) -> str:
    if pa.types.is_dictionary(field.type):
        return "text"
    if pa.types.is_list(field.type):
        return f"list of {field.type.value_type}"
    return str(field.type)


@pytest.mark.parametrize("table", list(schema.TABLES))
def test_columns(table):
    expected = [(field.name, kind_of(field), "yes" if field.name in NULLABLE[table] else "no") for field in schema.TABLES[table]]
    assert rows_of(table) == expected


@pytest.mark.parametrize("table", list(ROW_TYPES))
def test_row_types_are_in_column_order(table):
    assert list(ROW_TYPES[table]._fields) == schema.TABLES[table].names


def test_version():
    assert f"# The trace format, version {version.FORMAT_VERSION}\n" in PAGE
    assert re.findall(r"^\| (\d+) \|", section("Versions"), re.MULTILINE)[-1] == str(version.FORMAT_VERSION)
    assert schema.FORMAT_VERSION == version.FORMAT_VERSION


@pytest.mark.parametrize("kind", [manifest.RunManifest, manifest.RankManifest, drops.Drops, index.SegmentEntry])
def test_keys_of_the_json_parts(kind):
    named = set(re.findall(r"[`\"](\w+)[`\"]", PAGE))
    assert {field.name for field in fields(kind)} - {"extra"} <= named


def test_reasons_for_torn_tails_and_drops():
    code = "".join(Path(module.__file__).read_text() for module in (extent, index, reader, commit, intake, writer))
    torn = re.findall(r"`([a-z-]+)`", section("Groups, and what survives a kill").split("| slug | meaning |")[1].split("\n\n")[0])
    assert set(torn) == set(re.findall(r'"((?:index|segment|manifest|no|not)-(?:missing|damaged|short|manifest|finished))"', code))
    lost = set(re.findall(r'lose(?:_other)?\([^"]*"([a-z-]+)"', code)) | {"writer-closed"}
    assert lost <= set(re.findall(r"`([a-z-]+)`", section("Manifests")))
