from .parts import PartFolder

__all__ = ["PartFolder"]
