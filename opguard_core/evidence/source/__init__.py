"""What changed between two functions, and what only moved or got another name."""

from opguard_core.evidence.source.compared import Change, Comparison, compare_sources
from opguard_core.evidence.source.enclosing import Function, Place
from opguard_core.evidence.source.expressions import Kind

__all__ = ["Change", "Comparison", "Function", "Kind", "Place", "compare_sources"]
