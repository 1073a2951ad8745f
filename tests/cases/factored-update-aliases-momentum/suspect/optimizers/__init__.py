from .came import CAME

__all__ = ["CAME"]
