from .mixture import Mixture

__all__ = [
    "Mixture",
]
