"""Runs one suite of CPython's own ``test`` package in this process, with or without every call rewritten, and prints its results.

python standard.py plain|rewritten|watched test_functools
"""

import importlib
import io
import json
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))


class _Watching:
    """Is asked about every call and wants none."""

    asked = 0

    def operator_of(self, function):
        _Watching.asked += 1

    def call(self, site, name, function, /, *args, **kwargs):
        raise AssertionError(f"{name} was not to be observed")


def main(how, suite):
    hook = None
    if how != "plain":
        from opguard_core.instrument import runtime
        from opguard_core.instrument.hook import Hook

        hook = Hook(everything=True)
        hook.install()
        if how == "watched":
            runtime.observe(_Watching())
    sys.argv = ["suite"]
    module = importlib.import_module(f"test.{suite}")
    result = unittest.TextTestRunner(stream=io.StringIO(), verbosity=0).run(unittest.defaultTestLoader.loadTestsFromModule(module))
    found = {
        "run": result.testsRun,
        "skipped": sorted(str(test) for test, _ in result.skipped),
        "failed": {str(test): text.strip().splitlines()[-1] for test, text in [*result.failures, *result.errors]},
        "asked": _Watching.asked,
        "disposition": "" if hook is None else hook.dispositions.of(f"test.{suite}", module).reason,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
