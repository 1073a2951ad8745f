"""Which frame an event is said to be at."""

import pytest

from opguard_core.certify.compare import compare
from opguard_core.certify.places import ChangedFiles, distribution_of
from tests.support.script import Held, Script


def run(content, *, library=None, **facts):
    """One operator that gives ``content``, called from user code through a library."""
    script = Script()
    x = script.given((4, 8), 1)
    more = {} if library is None else {"library": library}
    y = script.op("aten.mul.Tensor", [x], (4, 8), Held(content), **{"at": "net(x)", "file": "train.py", **more, **facts})
    script.read(y, at="y.item()", file="train.py")
    return script.close()


def place(reference, suspect):
    pivot = compare(reference, suspect).pivot
    return pivot.suspect.file, pivot.suspect.text


SAME, NEW = "c" * 64, "d" * 64


def test_an_unchanged_library_points_at_the_line_of_the_user():
    assert place(run(5, library=("lib/layers.py", "x * w", SAME)), run(6, library=("lib/layers.py", "x * w", SAME))) == (
        "train.py",
        "net(x)",
    )


def test_a_changed_library_file_points_into_it():
    sides = run(5, library=("lib/layers.py", "x * w", SAME)), run(6, library=("lib/layers.py", "x * w2", NEW))
    assert place(*sides) == ("lib/layers.py", "x * w2")
    assert place(*reversed(sides)) == ("lib/layers.py", "x * w")


@pytest.mark.parametrize("file", ["<eval_with_key>", "inductor/0123.py"])
def test_code_that_torch_writes_for_a_program_is_no_changed_library(file):
    """Its text differs because the program does."""
    assert place(run(5, library=(file, "mul(x, 2)", SAME)), run(6, library=(file, "mul(x, 3)", NEW))) == ("train.py", "net(x)")


def test_a_library_file_that_only_one_side_ran_points_at_the_user():
    assert place(run(5), run(6, library=("lib/layers.py", "x * w", SAME))) == ("train.py", "net(x)")


def test_a_new_file_of_a_changed_library_points_into_it():
    changed = ChangedFiles({"lib/a.py": {"1"}, "other/b.py": {"1"}}, {"lib/a.py": {"2"}, "lib/new.py": {"3"}, "other/c.py": {"4"}})
    assert changed.changed == {"lib/a.py", "lib/new.py"}


def test_the_distribution_is_the_first_folder():
    assert distribution_of("transformers/models/llama.py") == "transformers"
    assert distribution_of("six.py") == "six.py"
    assert distribution_of("") == ""


def test_without_any_frame_there_is_no_place():
    pivot = compare(run(5, at=None), run(6, at=None)).pivot
    assert pivot.reference is None and pivot.suspect is None
    assert pivot.stack.suspect is None


def test_without_a_stack_the_two_known_frames_are_used():
    from opguard_core.certify.places import Places

    trace = run(5, library=("lib/layers.py", "x * w", SAME)).ranks[0]
    places = Places(trace, frozenset())
    assert places.place(-1, 0, 1).text == "net(x)"
    assert places.place(-1, -1, 1).text == "x * w"
    assert places.place(-1, -1, -1) is None
    assert Places(trace, frozenset({"lib/layers.py"})).place(-1, 0, 1).text == "x * w"


def test_stacks_are_told_outermost_first():
    sides = [run(content, library=("lib/layers.py", "x * w", SAME), calls=("main()",)) for content in (5, 6)]
    pivot = compare(*sides).pivot
    assert [frame.text for frame in pivot.stack.suspect] == ["main()", "net(x)", "x * w"]


@pytest.mark.parametrize("source", [""])
def test_files_without_a_source_digest_are_never_called_changed(source):
    sides = run(5, library=("lib/layers.py", "x * w", source)), run(6, library=("lib/layers.py", "x * w", source))
    assert place(*sides) == ("train.py", "net(x)")
