from .disk_cache import cache_info
from .remote_paths import RemoteNames
from .storages import STORAGES
from .stores import store_of
from .transfers import Upload, infos_if_there, listing, remove, upload

__all__ = [
    "STORAGES",
    "RemoteNames",
    "Upload",
    "cache_info",
    "infos_if_there",
    "listing",
    "remove",
    "store_of",
    "upload",
]
