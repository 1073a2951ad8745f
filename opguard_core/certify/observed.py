"""Who observed a rank, at which level, and why: the part of an answer's coverage that explains itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from opguard_core.trace.manifest import RankManifest

_ENGINES = ("native", "dispatch", "sentinel")
_KINDS = ("auto", "all")  # words for kinds of callees, not names
MAX_UNSEEN = 4


def observed(manifest: RankManifest) -> dict[str, Any]:
    """The ``observed`` object of one rank.

    Returns:
        ``engine`` and, where another one was left, ``why``; with regions of torch.compile also ``compiled``: their ``level``, ``why``,
        how many ``launches`` of generated kernels are boundaries, and what of them is ``unseen``; with ``--callsites`` also
        ``callsites``: the ``patterns``, how many ``places`` were observed, and the patterns ``unused``, which named no call that ran.
        Empty for a trace that does not tell.
    """
    engines = manifest.engines
    name = next((one for one in _ENGINES if isinstance(engines.get(one), Mapping)), None)
    told: dict[str, Any] = {}
    if name is not None:
        told["engine"] = name
        if why := engines[name].get("why_not_native"):
            told["why"] = f"not native: {why}"
    regions = engines.get("compiled")
    if isinstance(regions, Mapping):
        told["compiled"] = {key: regions[key] for key in ("level", "why", "launches", "artefact") if key in regions}
        if unseen := _unseen(regions):
            told["compiled"]["unseen"] = unseen
    calls = engines.get("callsites")
    if isinstance(calls, Mapping) and isinstance(calls.get("observed"), list):
        told["callsites"] = _calls(calls.get("patterns", ()), [str(one.get("operator", "")) for one in calls["observed"]])
    return told


def _calls(patterns: Sequence[str], operators: list[str]) -> dict[str, Any]:
    names = {operator.removeprefix("extension.") for operator in operators}
    unused = [one for one in patterns if one not in _KINDS and not any(fnmatchcase(name, one) for name in names)]
    return {"patterns": list(patterns), "places": len(operators), "unused": unused}


def _unseen(regions: Mapping[str, Any]) -> list[str]:
    listed = regions.get("regions")
    found = [
        f"{region.get('region', '')}: {part['unseen']}"
        for region in (listed if isinstance(listed, list) else ())
        for part in region.get("parts", ())
        if part.get("unseen")
    ]
    graphs = regions.get("graphs")
    if isinstance(graphs, Mapping) and graphs.get("replays"):
        found.insert(0, f"{graphs['replays']} replays of CUDA graphs: {graphs.get('unseen', '')}")
    return list(dict.fromkeys(found))[:MAX_UNSEEN]
