"""Lines of the program behind code that torch writes for a graph and runs as it is (backends ``eager`` and ``aot_eager``)."""

from __future__ import annotations

from types import FrameType

from opguard_core.engines.inductor.origins import Line, lines_of


def lines_of_fx(frame: FrameType) -> tuple[Line, ...]:
    """Stack of the program that the running line of a graph's code was traced from; empty if the graph does not tell.

    Args:
        frame: A frame whose file is `origins.FX_FILE`; not kept.
    """
    if frame.f_code.co_varnames[:1] != ("self",):
        return ()
    module = frame.f_locals.get("self")
    numbers = getattr(module, "_lineno_map", None)
    index = numbers.get(frame.f_lineno - frame.f_code.co_firstlineno) if isinstance(numbers, dict) else None
    if index is None:
        return ()
    node = next((one for number, one in enumerate(module.graph.nodes) if number == index), None)  # type: ignore[union-attr]
    return () if node is None else lines_of(node.meta.get("stack_trace"))
