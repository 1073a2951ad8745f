"""Every edit keeps what a program prints, changes its text, and knows where each statement went."""

import ast
import difflib

import numpy as np
import pytest

from tests.unit.variants.conftest import SEEDS, program
from tests.unit.variants.programs import FILES, MODEL, TRAIN
from tests.variants.edits import EDITS
from tests.variants.edits.loops import squash
from tests.variants.program import Program, spots_at, tag, untag
from tests.variants.runs import WATCH
from tests.variants.truth import Edited

LONGER = "one-more-step"
NEUTRAL = [kind for kind in EDITS if kind != LONGER]


def plain(text):
    return Program({"train.py": tag(text, iter(range(1, 1000)))}, "train.py")


def after(kind, text, seed=0):
    """The text after an edit, and the edited program."""
    changed = plain(text)
    EDITS[kind](changed, np.random.default_rng(seed))
    return changed.written()[0]["train.py"], changed


@pytest.mark.parametrize("kind", NEUTRAL)
def test_an_edited_program_prints_what_it_printed(kind, outputs):
    assert any("step 2 loss" in line for line in outputs[""][0])
    assert outputs[kind], "no seed made a variant"
    for printed in outputs[kind]:
        own = [line for line in printed if not line.startswith(WATCH)]
        assert own == outputs[""][0], "\n".join(difflib.unified_diff(outputs[""][0], own, lineterm=""))


@pytest.mark.parametrize("kind", list(EDITS))
def test_an_edit_changes_the_text_and_the_text_compiles(kind, edited):
    before = program().written()[0]
    assert len(edited[kind]) >= SEEDS // 2
    for changed in edited[kind]:
        texts = changed.written()[0]
        assert texts != before
        for name, text in texts.items():
            compile(text, name, "exec")


def test_one_more_step_makes_some_runs_longer_by_a_step(outputs):
    before = outputs[""][0]
    assert any(sum("loss" in line for line in printed) == sum("loss" in line for line in before) + 1 for printed in outputs[LONGER])


@pytest.mark.parametrize("kind", list(EDITS))
def test_no_statement_is_lost_and_each_is_where_the_record_says(kind, edited):
    before = {spot.tag: spot for spot in program().written()[1]}
    for changed in edited[kind]:
        spots = changed.written()[1]
        texts = changed.written()[0]
        gone = {spot.text for number, spot in before.items() if number not in {spot.tag for spot in spots}}
        # Only a loop header that is unrolled away has no place any more.
        assert all(text.startswith("for ") for text in gone)
        for spot in spots:
            lines = texts[spot.file].split("\n")[spot.first - 1 : spot.last]
            assert "\n".join(lines).strip() == spot.text
            assert 1 <= spot.first <= spot.last


def test_numbers_come_off_as_they_went_on():
    for text in (TRAIN, MODEL):
        plain_text, spots = untag(tag(text, iter(range(1, 1000))))
        assert ast.dump(ast.parse(plain_text)) == ast.dump(ast.parse(text))
        assert plain_text.split("\n") == text.split("\n")
        assert len({number for _, _, number, _ in spots}) == len(spots)


def test_a_statement_over_several_lines_is_found_on_each_of_them():
    spots = plain("x = sum(\n    [1,\n     2],\n)\nif x:\n    y = 1\n").written()[1]
    assert {spot.text for line in (1, 2, 3, 4) for spot in spots_at(spots, "train.py", line)} == {"x = sum(\n    [1,\n     2],\n)"}
    assert [spot.text for spot in spots_at(spots, "train.py", 5)] == ["if x:"]
    assert [spot.text for spot in spots_at(spots, "train.py", 6)] == ["y = 1"]


def test_a_temporary_takes_what_is_evaluated_first():
    seen = {after("temporaries", "y = f(g(x), h(x))\n", seed)[0] for seed in range(8)}
    assert seen == {"part_v1 = g(x)\ny = f(part_v1, h(x))\n"}


@pytest.mark.parametrize("text", ["y = f(x, g(x))\n", "y = a and f(x)\n", "y = [g(x) for x in z]\n", "super().__init__()\n"])
def test_a_temporary_never_changes_the_order_of_evaluation(text):
    with pytest.raises(Exception, match="no statement of that form"):
        after("temporaries", text)


def test_keywords_attributes_and_imports_keep_their_names():
    text = "from m import size\ndef f(a):\n    width = a.width\n    return g(width=width, size=size)\n"
    found, changed = after("locals-renamed", text, 1)
    new = next(iter(changed.names))
    assert changed.names == {new: "width"}
    assert found == f"from m import size\ndef f(a):\n    {new} = a.width\n    return g(width={new}, size=size)\n"


@pytest.mark.parametrize("declaration", ["global n", "from m import n", "def n(): return 1"])
def test_a_local_name_that_is_more_than_that_stays(declaration):
    text = f"def f():\n    {declaration}\n    n = 1\n    return n\n"
    with pytest.raises(Exception, match="no local variable"):
        after("locals-renamed", text)


def test_what_was_renamed_split_or_extracted_is_written_back_as_it_was():
    for kind, text, expressions in (
        ("locals-renamed", "def f(a):\n    b = a @ a\n    return g(b * 2)\n", ["a @ a", "b * 2", "g(b * 2)"]),
        ("temporaries", "y = f(g(x) * 2)\n", ["f(g(x) * 2)"]),
        ("loops-rewritten", "for i, x in items(y):\n    print(x)\n", ["for i, x in items(y)", "items(y)"]),
    ):
        for seed in range(6):
            found, changed = after(kind, text, seed)
            back = Edited([], [], changed)
            pieces = {squash(ast.unparse(node)) for node in ast.walk(ast.parse(found)) if isinstance(node, ast.expr)}
            pieces = {back.canonical(piece) for piece in pieces}
            headers = [line.strip().rstrip(":") for line in found.split("\n") if line.startswith("for ")]
            pieces |= {back.canonical(header) for header in headers}
            assert {squash(expression) for expression in expressions} <= pieces, (kind, seed, found)


def test_an_expression_moves_to_a_new_file_with_its_number():
    changed = Program(
        {"train.py": tag("import math\ndef f(a, len):\n    b = math.sqrt(a) + len\n    return b\n", iter(range(1, 99)))}, "train.py"
    )
    EDITS["expressions-extracted"](changed, np.random.default_rng(1))
    new = next(name for name in changed.files if name != "train.py")
    texts, spots = changed.written()
    assert texts[new].startswith("import math\n")
    places = {spot.file for spot in spots if spot.text.endswith("math.sqrt(a) + len") or "piece" in spot.text}
    tags = {spot.tag for spot in spots if spot.file == new}
    assert places == {"train.py", new}
    assert tags <= {spot.tag for spot in spots if spot.file == "train.py"}
    namespace = {}
    exec(texts[new], namespace)
    piece = next(value for name, value in namespace.items() if name.startswith("piece"))
    assert piece(9.0, 1) == 4.0


def test_files_that_come_with_the_program_are_written_beside_the_edited_ones(tmp_path):
    source = tmp_path / "from"
    source.mkdir()
    for name, text in {**FILES, "data.txt": "1 2 3"}.items():
        (source / name).write_text(text)
    changed = Program.read(source, ["python", "train.py"])
    EDITS["definitions-moved"](changed, np.random.default_rng(0))
    spots = changed.write(source, tmp_path / "to")
    assert (tmp_path / "to" / "data.txt").read_text() == "1 2 3"
    assert {path.name for path in (tmp_path / "to").glob("*.py")} == set(changed.files) > set(FILES)
    assert {spot.file for spot in spots} == set(changed.files)
