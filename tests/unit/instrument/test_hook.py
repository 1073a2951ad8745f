"""The import hook: what it rewrites, what it leaves alone and why, and that nothing around a module changes."""

import importlib
import importlib.util
import inspect
import linecache
import os
import pickle
import subprocess
import sys
import traceback
import zipfile
from pathlib import Path

import pytest

from opguard_core.instrument import runtime
from opguard_core.instrument.cache import Cache
from opguard_core.instrument.dispositions import REWRITTEN
from opguard_core.instrument.hook import Hook

REPOSITORY = Path(__file__).parents[3]
BODY = (
    "def twice(x):\n    return double(x)\n\n\ndef double(x):\n    return add(x,\n               x)\n\n\ndef add(a, b):\n    return a + b\n"
)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder on the path whose modules are forgotten afterwards."""
    folder = tmp_path / "program"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    known = set(sys.modules)
    yield folder
    for name in set(sys.modules) - known:
        del sys.modules[name]
    importlib.invalidate_caches()


@pytest.fixture
def hook(tmp_path):
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    hook = Hook(cache=Cache(folder))
    hook.install()
    yield hook
    hook.remove()
    sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not hook]


def module(place, name, text=BODY):
    path = place / f"{name}.py"
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text(text)
    importlib.invalidate_caches()
    return path


def reason(hook, name):
    return hook.dispositions.of(name, sys.modules.get(name)).reason


def is_rewritten(function):
    return runtime.OBSERVING in function.__code__.co_names


def test_a_module_runs_rewritten_and_all_around_it_is_as_without(place, hook):
    path = module(place, "og_plain")
    before = (path.read_bytes(), path.stat().st_mtime_ns, sorted(os.listdir(place)))
    og_plain = importlib.import_module("og_plain")
    assert is_rewritten(og_plain.twice)
    assert og_plain.twice(3) == 6
    assert reason(hook, "og_plain") == REWRITTEN
    assert (path.read_bytes(), path.stat().st_mtime_ns, sorted(os.listdir(place))) == before
    spec = og_plain.__spec__
    assert type(spec.loader).__name__ == "SourceFileLoader"
    assert vars(spec.loader).keys() == {"name", "path"}
    assert og_plain.__file__ == spec.origin == str(path)
    assert not [name for name in vars(og_plain) if "opguard" in name]
    assert inspect.getsource(og_plain.twice) == BODY[: BODY.index("\n\n\n") + 1]
    assert pickle.loads(pickle.dumps(og_plain.twice)) is og_plain.twice
    assert og_plain.__loader__.get_source("og_plain") == BODY


def test_a_reloaded_module_is_rewritten_again(place, hook):
    path = module(place, "og_again")
    og_again = importlib.import_module("og_again")
    path.write_text(BODY.replace("a + b", "a * b"))
    importlib.invalidate_caches()
    assert importlib.reload(og_again).twice(3) == 9
    assert is_rewritten(og_again.twice)


def test_tracebacks_name_no_frame_of_ours(place, hook):
    module(place, "og_raises", BODY + "\n\ndef wrong():\n    return twice(\n        None)\n\n\nwrong()\n")
    with pytest.raises(TypeError) as raised:
        exec("import og_raises")
    shown = traceback.extract_tb(raised.value.__traceback__)
    assert [frame.name for frame in shown[-5:]] == ["<module>", "wrong", "twice", "double", "add"]
    assert [frame.lineno for frame in shown[-4:]] == [15, 2, 6, 11]
    # The import statement takes the machinery's frames off, and ours among them.
    assert [frame.name for frame in shown[:-5]] == ["test_tracebacks_name_no_frame_of_ours", "<module>"]


def test_source_errors_are_those_of_the_import(place, hook):
    module(place, "og_wrong", "def f(:\n")
    with pytest.raises(SyntaxError) as raised:
        importlib.import_module("og_wrong")
    assert raised.value.lineno == 1
    assert "SyntaxError" in reason(hook, "og_wrong")


def test_every_kind_of_module_has_a_reason(place, hook, monkeypatch):
    module(place, "og_pkg/__init__", "from og_pkg import inner\n")
    module(place, "og_pkg/inner", BODY)
    (place / "og_space").mkdir()
    module(place, "og_space/part", BODY)
    with zipfile.ZipFile(place / "og.zip", "w") as archive:
        archive.writestr("og_zipped.py", BODY)
    monkeypatch.syspath_prepend(str(place / "og.zip"))
    for name in ("og_pkg", "og_space.part", "og_zipped", "colorsys"):
        importlib.import_module(name)
    spec = importlib.util.spec_from_file_location("og_by_path", module(place, "og_by_path"))
    by_path = importlib.util.module_from_spec(spec)
    sys.modules["og_by_path"] = by_path
    spec.loader.exec_module(by_path)
    sys.modules["og_made"] = type(sys)("og_made")
    reasons = {name: reason(hook, name) for name in (*sys.modules, "__main__")}
    assert all(reasons.values())
    assert reasons["og_pkg"] == reasons["og_pkg.inner"] == reasons["og_space.part"] == REWRITTEN
    assert reasons["og_space"].startswith("namespace package")
    assert reasons["og_zipped"] == "in a zip file"
    assert reasons["colorsys"].startswith("standard library")
    assert reasons["og_by_path"].startswith("loaded without the import system")
    assert reasons["og_made"] == "made by the program, not imported"
    assert reasons["__main__"].startswith("main script: it began before")
    assert reasons["opguard_core.instrument"] == "it is OpGuard's own"
    report = hook.report()
    assert report["modules"]["og_pkg.inner"]["sites"] == 2
    assert report["by_reason"][REWRITTEN] == 3
    assert sum(report["by_reason"].values()) == len(sys.modules)


def test_modules_that_were_there_before_are_said_to_be(place, tmp_path):
    module(place, "og_early")
    importlib.import_module("og_early")
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    assert reason(Hook(cache=Cache(folder)), "og_early") == "imported before the capture began"


def test_a_loader_of_someone_else_is_left_alone(place, hook):
    """As pytest's, which rewrites the asserts of tests."""
    from _pytest.assertion.rewrite import AssertionRewritingHook

    class Rewriting(AssertionRewritingHook):
        def __init__(self):
            pass

        def find_spec(self, name, path=None, target=None):
            if name != "test_og":
                return None
            return importlib.util.spec_from_file_location(name, place / "test_og.py", loader=self)

        def exec_module(self, module):
            exec(compile((place / "test_og.py").read_text(), str(place / "test_og.py"), "exec"), module.__dict__)

    module(place, "test_og", "def test():\n    assert len('a') == 1\n")
    theirs = Rewriting()
    sys.meta_path.insert(1, theirs)
    try:
        test_og = importlib.import_module("test_og")
    finally:
        sys.meta_path.remove(theirs)
    assert not is_rewritten(test_og.test)
    assert "Rewriting" in reason(hook, "test_og")
    assert "makes its code itself" in reason(hook, "test_og")


def test_a_removed_hook_rewrites_nothing_more(place, hook):
    module(place, "og_first")
    module(place, "og_second")
    importlib.import_module("og_first")
    hook.remove()
    assert not is_rewritten(importlib.import_module("og_second").twice)
    assert sys.modules["og_first"].twice(2) == 4


def test_rewritten_functions_can_be_made_anew_with_other_globals(place, hook):
    module(place, "og_moved")
    og_moved = importlib.import_module("og_moved")
    function = type(og_moved.add)(og_moved.twice.__code__, {"double": lambda x: x * 10})
    assert function(2) == 20


def test_the_sites_of_a_module_are_known_where_it_came_from_the_cache(place, hook):
    module(place, "og_kept")
    importlib.import_module("og_kept")
    del sys.modules["og_kept"]
    og_kept = importlib.import_module("og_kept")
    assert hook.report()["cache"] == {"found": 1, "made": 1, "damaged": 0}
    digest = next(name for name in og_kept.twice.__code__.co_consts if isinstance(name, str) and ":" in name)
    site = runtime.describe(digest)
    assert (Path(site.file).name, site.line, site.column, site.end_column, site.function, site.kind) == (
        "og_kept.py",
        2,
        11,
        20,
        "twice",
        "call",
    )
    linecache.clearcache()


CHILD = """
import sys
sys.path[:0] = [{repository!r}]
from opguard_core.instrument.hook import Hook
hook = Hook()
hook.install()
import og_many
print(og_many.twice(4), hook.report()["cache"])
"""


def test_ranks_that_import_at_the_same_time_find_whole_entries(place, tmp_path):
    module(place, "og_many", BODY * 20)
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "home"), "PYTHONPATH": str(place), "PYTHONDONTWRITEBYTECODE": "1"}
    program = CHILD.format(repository=str(REPOSITORY))
    ranks = [
        subprocess.Popen([sys.executable, "-c", program], env=environment, cwd=place, stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    said = [rank.communicate(timeout=100)[0] for rank in ranks]
    assert all(text.startswith("8 ") and "'damaged': 0" in text for text in said), said
    folder = tmp_path / "home" / "opguard" / "callsites"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert not [path.name for path in folder.iterdir() if path.name.startswith(".new-")]
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in folder.iterdir())


def test_rewriting_that_takes_long_says_what_it_costs(place, hook, monkeypatch, capsys):
    monkeypatch.setattr(hook, "_says_at", 0.0)
    module(place, "og_long")
    importlib.import_module("og_long")
    said = capsys.readouterr().err
    assert said.startswith("opguard: ") and "2 calls of 1 modules, which are kept for the next run" in said
    monkeypatch.setattr(hook, "_says_at", 1e9)
    module(place, "og_short")
    importlib.import_module("og_short")
    assert capsys.readouterr().err == ""
