from .disk_cache import cache_info
from .storages import STORAGES, RemoteNames, upload_bytes, upload_folder

__all__ = [
    "STORAGES",
    "RemoteNames",
    "cache_info",
    "upload_bytes",
    "upload_folder",
]
