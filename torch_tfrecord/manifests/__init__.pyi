from .manifest import BLOCK_RECORDS, MANIFEST_SUFFIX, Manifest, is_manifest, shard_paths
from .manifest_shards import ManifestShards, build_manifest, open_shards, write_manifest

__all__ = [
    "BLOCK_RECORDS",
    "MANIFEST_SUFFIX",
    "Manifest",
    "ManifestShards",
    "build_manifest",
    "is_manifest",
    "open_shards",
    "shard_paths",
    "write_manifest",
]
