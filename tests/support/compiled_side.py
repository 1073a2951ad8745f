"""One run of a program with compiled regions: what it came to, what was compiled, and what was seen of it."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

from opguard_core.engines.inductor.generated import digest_of
from tests.support.engine_programs.catalogue import Program
from tests.support.engine_streams import outcome

KERNEL = "inductor.cpp_fused"


class Side:
    """One run: what it returned, what was compiled, and what was seen."""

    def __init__(self, run: Callable[[], Any], folder: Path, engine: str | None, mode: str = "full", **options: Any) -> None:
        import torch._inductor.codecache
        import torch._inductor.metrics

        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        torch._inductor.metrics.reset()
        torch._inductor.codecache.PyCodeCache.cache_clear()
        gc.collect()
        self.folder = folder
        self.outcome = outcome(Program("test", run), engine, folder, mode, **options)
        counters = torch._dynamo.utils.counters
        texts = [Path(one.__file__).read_text() for one in torch._inductor.codecache.PyCodeCache.modules if hasattr(one, "call")]
        self.codes = sorted(map(digest_of, texts))
        self.graphs, self.breaks = counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())
        self.kernels = torch._inductor.metrics.generated_kernel_count
        self.events = self.outcome.tables.get("events", {})

    @property
    def gaps(self):
        """What could not be seen of the program; threads that an earlier compilation left are not the program's."""
        return self.outcome.manifest["coverage"]["gaps"].keys() - {"thread-not-followed"}

    @property
    def program(self):
        """What the program is, and what it came to: the same with us and without us."""
        return self.outcome.result, self.codes, self.graphs, self.kernels

    def operators(self, phase):
        pairs = zip(self.events["operator"], self.events["phase"], strict=True)
        return [operator for operator, found in pairs if found == phase and not operator.startswith("opguard.")]

    @property
    def compiled(self):
        return self.outcome.manifest["engines"]["compiled"]
