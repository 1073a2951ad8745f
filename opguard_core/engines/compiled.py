"""Compiled regions: while a dispatch mode is active torch runs them eagerly, so each of their operators is a boundary.

Left alone, torch would refuse a region that asks for ``fullgraph=True``, and would try to compile what it skips; the stance
"force_eager" says the same without either. The bits of an eager region may differ from those of a compiled one, on both
sides alike: coverage says so.
"""

from __future__ import annotations

import sys
from typing import Any

from opguard_core.engines.coverage import Coverage

_MODULE = "torch._dynamo.eval_frame"


class CompiledRegions:
    """Keeps ``torch.compile`` eager; its ``enter`` and ``leave`` go around ``torch.compile`` itself."""

    def __init__(self, coverage: Coverage) -> None:
        self._coverage = coverage
        self._prior: Any = None

    def enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """``torch.compile`` is called; it imports the compiler, which we do not do for it."""
        return not kwargs.get("disable")

    def leave(self, token: Any, returned: bool) -> None:
        """A region was declared, none has run."""
        if not token:
            return
        self._coverage.count("compiled_regions_run_eagerly")
        compiler: Any = sys.modules.get(_MODULE)
        if compiler is not None and self._prior is None and compiler._stance.stance == "default":
            self._prior = compiler._stance
            compiler._stance = type(self._prior)("force_eager")

    def stop(self) -> None:
        """Give the stance back, unless the program has set one of its own since."""
        compiler: Any = sys.modules.get(_MODULE)
        if compiler is not None and self._prior is not None and compiler._stance.stance == "force_eager":
            compiler._stance = self._prior
        self._prior = None
