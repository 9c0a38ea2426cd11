from .codecs import CODECS, InflatedFiles

__all__ = [
    "CODECS",
    "InflatedFiles",
]
