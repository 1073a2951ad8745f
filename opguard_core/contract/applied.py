"""What became of the knobs in one run: asked for, found, set, and still set when training began. Pure: reads a contract."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opguard_core.contract.knobs import KNOBS, Knob

# The fact that tells whether a knob still holds at the first optimizer step.
FACT_OF_KNOB = {
    "torch.use_deterministic_algorithms": "flags.deterministic_algorithms",
    "torch.utils.deterministic.fill_uninitialized_memory": "flags.fill_uninitialized_memory",
    "torch.backends.cudnn.deterministic": "flags.cudnn.deterministic",
    "torch.backends.cudnn.benchmark": "flags.cudnn.benchmark",
    "torch.backends.mkldnn.deterministic": "flags.mkldnn.deterministic",
}


def applied_knobs(contract: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Each knob with ``name``, ``value``, ``before``, ``after`` and ``problem`` (empty: it was applied and holds).

    Args:
        contract: A rank's contract.

    Returns:
        An empty list for a run without ``--deterministic``.
    """
    if contract.get("run.deterministic") is not True:
        return []
    reports = {**_mapping(contract.get("knobs.launch")), **_mapping(contract.get("knobs.rank"))}
    found = []
    for knob in KNOBS:
        report = _mapping(reports.get(knob.name))
        before, after = report.get("before"), report.get("after")
        found.append(
            {"name": knob.name, "value": knob.value, "before": before, "after": after, "problem": _problem(knob, report, contract)}
        )
    return found


def _problem(knob: Knob, report: Mapping[str, Any], contract: Mapping[str, Any]) -> str:
    if not report:
        return "nothing was recorded about it"
    if "not_applied" in report:
        return f"it could not be set: {report['not_applied']}"
    if report.get("after") != knob.value:
        return "the environment had set it otherwise, which was left" if knob.when == "launch" else "it did not take the value"
    later = contract.get(FACT_OF_KNOB.get(knob.name, f"env.{knob.name}"))
    known = not isinstance(later, Mapping) and later is not None
    return f"the program set it to {later} later" if known and later != knob.value else ""


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
