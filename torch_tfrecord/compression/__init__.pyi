from .codecs import CODECS
from .inflated_file import InflatedFiles

__all__ = [
    "CODECS",
    "InflatedFiles",
]
