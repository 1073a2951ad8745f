"""The main program, however it is started, runs rewritten and finds itself as it would be."""

import ast
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from opguard_core.instrument import early

REPOSITORY = Path(__file__).parents[3]
# Stands for the bootstrap, which needs a run folder.
SITE = f"""
import atexit, sys
sys.path.insert(0, {str(REPOSITORY)!r})
from opguard_core.instrument import hook
from opguard_core.instrument.main import Main
from opguard_core.launch.startup import bootstrap
sys.path.remove({str(REPOSITORY)!r})
hook.current = hook.Hook()
hook.current.install()
kind, value, _ = bootstrap.command_line(sys.orig_argv)
Main(hook.current, kind, value).prepare()
atexit.register(lambda: print(hook.current.dispositions.of("__main__", sys.modules["__main__"]).reason))
"""
PROGRAM = '''"""Says what it is."""
from __future__ import annotations
import sys


def look():
    main = sys.modules["__main__"]
    names = ("__name__", "__file__", "__package__", "__cached__", "__doc__", "__annotations__")
    facts = {name: getattr(main, name, "missing") for name in names}
    facts["spec"] = str(main.__spec__).partition("loader=")[0]
    facts["loader"] = type(main.__loader__).__name__
    facts["path"], facts["argv"] = sys.path[0], sys.argv
    facts["names"] = sorted(name for name in vars(main) if "opguard" in name)
    facts["file"], facts["line"] = sys._getframe().f_code.co_filename, sys._getframe(1).f_lineno
    print(facts)


if len(sys.argv) < 9:
    look()
'''


@pytest.fixture
def place(tmp_path):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(SITE)
    folder = tmp_path / "program"
    (folder / "pkg").mkdir(parents=True)
    for name in ("show.py", "pkg/__main__.py", "pkg/mod.py"):
        (folder / name).write_text(PROGRAM)
    (folder / "pkg" / "__init__.py").touch()
    with zipfile.ZipFile(folder / "app.zip", "w") as archive:
        archive.writestr("__main__.py", PROGRAM)
    return folder


def run(folder, words, *, hooked, **how):
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("OPGUARD", "PYTHON"))}
    environment.update(XDG_CACHE_HOME=str(folder.parent / "cache"), PYTHONDONTWRITEBYTECODE="1")
    if hooked:
        environment["PYTHONPATH"] = str(folder.parent / "site")
    return subprocess.run([sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False, **how)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["show.py", "x"], "rewritten"),
        (["./pkg/../show.py"], "rewritten"),
        (["-m", "pkg"], "rewritten"),
        (["-m", "pkg.mod", "-x"], "rewritten"),
        (["pkg"], "rewritten"),
        (["app.zip"], "in a zip file"),
        (["-c", "import show"], "a command of -c is compiled before we can see it"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_main_program_is_as_without_the_hook_and_says_whether_it_was_rewritten(place, words, reason):
    plain, hooked = run(place, words, hooked=False), run(place, words, hooked=True)
    assert plain.returncode == hooked.returncode == 0, hooked.stderr
    told, found = hooked.stdout.splitlines()
    assert ast.literal_eval(told) == ast.literal_eval(plain.stdout)
    assert found.endswith(reason)
    assert "opguard" not in str(sorted(path.name for path in place.rglob("*")))


def test_errors_of_a_script_and_its_exit_code_stay(place):
    (place / "wrong.py").write_text("import sys\ndef f():\n    return int(\n        sys.argv[1])\nf()\n")
    plain, hooked = run(place, ["wrong.py", "x"], hooked=False), run(place, ["wrong.py", "x"], hooked=True)
    assert (plain.returncode, hooked.returncode) == (1, 1)
    # Two frames of runpy, as under -m, stand in front.
    kept = [line for line in hooked.stderr.splitlines() if "<frozen runpy>" not in line]
    if sys.version_info >= (3, 11):
        assert kept == plain.stderr.splitlines()
    assert hooked.stderr.splitlines()[-1] == plain.stderr.splitlines()[-1]


def test_a_script_that_is_no_python_fails_as_it_would(place):
    (place / "broken.py").write_text("def f(:\n")
    plain, hooked = run(place, ["broken.py"], hooked=False), run(place, ["broken.py"], hooked=True)
    assert (hooked.returncode, hooked.stderr) == (plain.returncode, plain.stderr)
    assert "SyntaxError" in hooked.stdout


def test_names_of_the_programs_own_files_are_given_back(place, monkeypatch):
    (place / "og_shadowed.py").touch()
    before = frozenset(sys.modules)
    for name in ("og_shadowed", "og_shadowed.part", "og_other"):
        monkeypatch.setitem(sys.modules, name, type(sys)(name))
    early._give_names_back("script", str(place / "show.py"), before)
    assert [name for name in sorted(sys.modules) if name.startswith("og_")] == ["og_other"]


SPAWNING = """
import multiprocessing
import sys


def child(queue):
    main = sys.modules["__main__"]
    queue.put(str([child.__code__.co_filename, main.__name__, main.__file__, "__opguard_observing__" in child.__code__.co_names]))


if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    process = context.Process(target=child, args=(queue,))
    process.start()
    print(queue.get())
    process.join()
    sys.exit(process.exitcode)
"""


def test_the_script_of_a_spawned_child_is_rewritten_too(place):
    (place / "spawning.py").write_text(SPAWNING)
    plain, hooked = run(place, ["spawning.py"], hooked=False), run(place, ["spawning.py"], hooked=True)
    assert (plain.returncode, hooked.returncode) == (0, 0), hooked.stderr
    told, *said = sorted(hooked.stdout.splitlines())  # the facts in brackets first; then what each process says of itself
    *facts, is_rewritten = ast.literal_eval(told)
    *same, _ = ast.literal_eval(plain.stdout)
    assert facts == same
    assert is_rewritten
    assert "rewritten" in said


FINALIZED = """
import weakref


class Key:
    pass


class Closing:
    def __init__(self):
        self.key = Key()
        self.reference = weakref.ref(self.key, self.gone)

    def gone(self, reference, text=str, show=print):
        show(text(self.name()), flush=True)
        store = {}
        store[self.name()] = [self.name().upper().lower().strip(text(self.name()).upper())]

    def name(self):
        return "gone"

    def __del__(self, show=print):
        show(self.name(), flush=True)


closing = Closing()
closing.cycle = closing
"""


@pytest.mark.parametrize("words", [["-c", "import finalized"], ["finalized.py"]], ids=["module", "main"])
def test_finalizers_that_run_while_the_interpreter_ends_find_what_they_need(place, words):
    (place / "finalized.py").write_text(FINALIZED)
    plain, hooked = run(place, words, hooked=False), run(place, words, hooked=True)
    assert "gone" in plain.stdout
    assert hooked.stderr == plain.stderr == ""
    assert [line for line in hooked.stdout.splitlines() if line == "gone"] == plain.stdout.splitlines()
