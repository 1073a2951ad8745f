from .layers import GradientScaling, GradientReversal
from .network import DomainNetwork

__all__ = ["DomainNetwork", "GradientReversal", "GradientScaling"]
