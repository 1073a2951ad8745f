"""A pytest plugin that rewrites every call of what is imported, if asked, and writes each test's outcome."""

import json
import os
import sys
from pathlib import Path

if os.environ.get("SUITE_REWRITTEN"):
    sys.path.append(str(Path(__file__).parents[3]))
    from opguard_core.instrument.hook import Hook

    HOOK = Hook(everything=True)
    HOOK.install()

_outcomes = {}


def pytest_runtest_logreport(report):
    if report.when == "call" or report.outcome != "passed":
        _outcomes[report.nodeid] = [report.outcome, str(report.longrepr).splitlines()[-1:] if report.failed else []]


def pytest_sessionfinish(session):
    rewritten = {}
    if os.environ.get("SUITE_REWRITTEN"):
        rewritten = {name: HOOK.dispositions.of(name, module).reason for name, module in list(sys.modules.items())}
    Path(os.environ["SUITE_OUTCOMES"]).write_text(json.dumps({"outcomes": _outcomes, "modules": rewritten}))
