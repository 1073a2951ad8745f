"""Documented answers to build tests on."""

from __future__ import annotations

from typing import Any


def place(file: str = "train.py", line: int = 20, text: str = "loss * share") -> dict[str, Any]:
    """A PLACE."""
    statement = f"part = {text}"
    return {
        "file": file,
        "line": line,
        "end_line": line,
        "column": 11,
        "end_column": 23,
        "function": "main",
        "text": text,
        "statement": statement,
    }


def pivot(**changes: Any) -> dict[str, Any]:
    """A pivot."""
    value = {
        "rank": 0,
        "step": 3,
        "microbatch": 0,
        "phase": "forward",
        "operator": "aten.mul.Tensor",
        "slot": "out.0",
        "origin": "argument",
        "origin_alternatives": [],
        "stream": None,
        "thread": "main",
        "stack": {"reference": [place()], "suspect": [place()]},
        "reference": place(),
        "suspect": place(line=31, text="token_loss(model, batch) * share"),
        "forward": None,
        "near": [],
        "seq": {"reference": 7, "suspect": 9},
    }
    return {**value, **changes}


def answer(verdict: str, **changes: Any) -> dict[str, Any]:
    """A whole answer with that verdict."""
    value = {
        "schema": 1,
        "verdict": verdict,
        "mode": "verify",
        "scope": {"determinism": "cross-stack"},
        "pivot": pivot() if verdict == "diverged" else None,
        "isolated": [],
        "rank_firsts": [],
        "prefix": {"pairs": 10, "tensors": 30, "bytes": 4096},
        "compared": {"ranks": [0], "steps": [0, 6], "paired_share": 1.0},
        "coverage": {},
        "contract": [],
        "filters": [],
        "reasons": [{"slug": "torn", "text": "A trace stops early.", "fix": "Run again."}] if verdict == "inconclusive" else [],
        "exit": {"reference": 0, "suspect": 0},
        "trace": {"reference": "/out/reference/trace", "suspect": "/out/suspect/trace"},
        "seconds": {"reference": 1.0, "suspect": 1.0, "align": 0.1, "certify": 0.1, "total": 2.2},
    }
    return {**value, **changes}
