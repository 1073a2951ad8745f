from .model import LM
from .targets import SmoothTargets

__all__ = ["LM", "SmoothTargets"]
