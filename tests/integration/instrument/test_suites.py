"""With every call of every module rewritten, other people's suites give the results that they give without.

Nothing is excluded from the suites below. Of CPython's other suites, ten were run by hand with 3.10 to 3.13 (inspect, traceback,
sys_settrace, exceptions, scope, patma, super, descr, enum, typing). In these, tests of test_inspect differ:

- TestGetClosureVars (3 tests), "AssertionError: Closu[...]ns={'__opguard_observing__': False, ...": ``inspect.getclosurevars`` lists every
  name of ``builtins`` that a function loads, and rewritten functions load ours.
- test_signature_bind_implicit_arg (from 3.12 on), "TypeError: function() argument 'code' must be code, not str": the test takes the first
  constant of a function for the code of its generator, and the first is the name of a call.

While somebody observes, a trace function that is on at the same time also sees the frame of `runtime.pick` (test_sys_settrace), and a
recursion reaches its limit a few calls earlier (test_traceback, test_exceptions: their recursion tests).
"""

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

SUITES = Path(__file__).parents[2] / "support" / "suites"
STANDARD = ("test_dataclasses", "test_generators", "test_coroutines", "test_contextlib", "test_functools", "test_asyncgen")


def environment(tmp_path, **more):
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("OPGUARD", "PYTHON", "PYTEST"))}
    return {**kept, "XDG_CACHE_HOME": str(tmp_path / "cache"), **more}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("suite", STANDARD)
def test_a_suite_of_the_standard_library_gives_the_same_results(suite, tmp_path):
    try:
        import test.support  # noqa: F401
    except ImportError:
        pytest.skip(f"{sys.executable} comes without CPython's own test package")
    found = {}
    for how in ("plain", "rewritten", "watched"):
        words = [sys.executable, str(SUITES / "standard.py"), how, suite]
        done = subprocess.run(words, env=environment(tmp_path), cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        found[how] = json.loads(done.stdout.splitlines()[-1])
    plain = found["plain"]
    assert plain["run"] > 20
    for how in ("rewritten", "watched"):
        assert found[how]["disposition"] == "rewritten"
        assert {name: found[how][name] for name in ("run", "skipped", "failed")} == {
            name: plain[name] for name in ("run", "skipped", "failed")
        }
    assert found["watched"]["asked"] > 100


def _sdist(name, folder):
    """The unpacked source distribution of a library."""
    folder.mkdir()
    words = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "-q",
        "--no-deps",
        "--no-binary",
        ":all:",
        "--no-build-isolation",
        "-d",
        str(folder),
        name,
    ]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    archives = list(folder.glob("*.tar.gz"))
    if done.returncode or not archives:
        pytest.skip(f"the source distribution of {name} cannot be had here: {(done.stderr.strip().splitlines() or ['?'])[-1][:200]}")
    with tarfile.open(archives[0]) as archive:
        if sys.version_info >= (3, 11, 4):
            archive.extractall(folder, filter="data")
        else:
            archive.extractall(folder)
    return next(path for path in folder.iterdir() if path.is_dir())


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("library", "package", "tests"), [("toolz", "toolz", "toolz"), ("cachetools", "src", "tests")])
def test_the_suite_of_a_library_gives_the_same_results(library, package, tests, tmp_path):
    root = _sdist(library, tmp_path / "sdist")
    on_path = root / "src" if package == "src" else root
    found = {}
    for how in ("plain", "rewritten"):
        outcomes = tmp_path / f"{how}.json"
        more = {"PYTHONPATH": os.pathsep.join([str(on_path), str(SUITES)]), "SUITE_OUTCOMES": str(outcomes)}
        if how == "rewritten":
            more["SUITE_REWRITTEN"] = "1"
        words = [sys.executable, "-m", "pytest", "-q", "-p", "plugin", "-p", "no:cacheprovider", "-o", "addopts=", tests]
        done = subprocess.run(words, env=environment(tmp_path, **more), cwd=root, capture_output=True, text=True, timeout=300, check=False)
        assert outcomes.exists(), done.stdout[-2000:] + done.stderr[-2000:]
        found[how] = json.loads(outcomes.read_text())
    assert len(found["plain"]["outcomes"]) > 50
    assert found["rewritten"]["outcomes"] == found["plain"]["outcomes"]
    ours = {name: reason for name, reason in found["rewritten"]["modules"].items() if name.partition(".")[0] == library}
    assert set(ours.values()) <= {"rewritten"} | {reason for reason in ours.values() if "pytest" in reason}
    assert ours[library] == "rewritten"
