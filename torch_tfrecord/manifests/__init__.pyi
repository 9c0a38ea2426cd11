from .manifest_building import build_manifest, write_manifest
from .manifest_table import ManifestTable

__all__ = [
    "ManifestTable",
    "build_manifest",
    "write_manifest",
]
