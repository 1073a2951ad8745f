"""The tool declarations as programs read them; a difference is a reviewed change of the interface.

``OPGUARD_UPDATE_SNAPSHOTS=1 pytest tests/surface`` writes the file anew.
"""

import json
import os
from pathlib import Path

from opguard_harness.answer.plain import plain
from opguard_harness.interface.schemas import describe
from opguard_harness.registry import TOOLS

SNAPSHOT = Path(__file__).with_name("tools.json")


def test_the_declarations_are_those_of_the_snapshot():
    current = [plain(describe(tool)) for tool in TOOLS]
    if os.environ.get("OPGUARD_UPDATE_SNAPSHOTS"):
        SNAPSHOT.write_text(json.dumps(current, indent=1) + "\n", "ascii")
    assert current == json.loads(SNAPSHOT.read_text("ascii"))


def test_the_whole_list_is_small_enough_to_read():
    assert len(SNAPSHOT.read_text("ascii")) < 90_000
    for tool in TOOLS:
        assert len(tool.text) < 1_500
        assert len(tool.name) <= 35
