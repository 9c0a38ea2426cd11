from .disk_cache import DiskCache, cache_info
from .remote_paths import RemoteNames
from .requests import Transfer, each_at_once
from .store import FileRange, RemoteInfo, RemotePart, StoreError, without_signature
from .stores import store_of
from .transfers import (
    Upload,
    begin_range,
    fetch,
    forget,
    infos,
    infos_if_there,
    listing,
    read_into,
    remove,
    start_info,
    upload,
)

__all__ = [
    "DiskCache",
    "FileRange",
    "RemoteInfo",
    "RemoteNames",
    "RemotePart",
    "StoreError",
    "Transfer",
    "Upload",
    "begin_range",
    "cache_info",
    "each_at_once",
    "fetch",
    "forget",
    "infos",
    "infos_if_there",
    "listing",
    "read_into",
    "remove",
    "start_info",
    "store_of",
    "upload",
    "without_signature",
]
