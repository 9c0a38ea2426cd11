from .disk_cache import cache_info
from .storages import STORAGES, RemoteNames, upload_bytes, upload_folder
from .transfers import first_bytes

__all__ = [
    "STORAGES",
    "RemoteNames",
    "cache_info",
    "first_bytes",
    "upload_bytes",
    "upload_folder",
]
