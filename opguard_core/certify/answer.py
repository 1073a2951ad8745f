"""A verdict as the documented JSON object, less what only the caller knows (contract, exit, trace, seconds)."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from opguard_core.certify.verdict import Pivot, Verdict

SCHEMA = 1


def to_dict(verdict: Verdict) -> dict[str, Any]:
    """Plain form of a verdict, with the keys of the documented interface.

    Returns:
        A JSON-ready mapping; the caller adds ``contract``, ``exit``, ``trace`` and ``seconds``.
    """
    return {
        "schema": SCHEMA,
        "verdict": verdict.verdict,
        "mode": verdict.mode,
        "scope": verdict.scope,
        "pivot": None if verdict.pivot is None else pivot_dict(verdict.pivot),
        "isolated": [pivot_dict(pivot) for pivot in verdict.isolated],
        "rank_firsts": [pivot_dict(pivot) for pivot in verdict.rank_firsts],
        "prefix": verdict.prefix,
        "compared": verdict.compared,
        "coverage": verdict.coverage,
        "filters": verdict.filters,
        "reasons": [asdict(entry) for entry in verdict.reasons],
        "candidates": verdict.candidates,
        **({} if verdict.spread is None else {"spread": verdict.spread}),
        **({} if verdict.device_work is None else {"device_work": verdict.device_work}),
        **({} if verdict.semantic is None else {"semantic": verdict.semantic}),
        **({} if verdict.located is None else {"located": verdict.located}),
    }


def pivot_dict(pivot: Pivot) -> dict[str, Any]:
    """Plain form of one boundary; ``seq`` numbers its events in both traces, ``kernels`` is there where device work was recorded."""
    told = asdict(pivot)
    return told if told["kernels"] is not None else {key: value for key, value in told.items() if key != "kernels"}
