from .disk_cache import cache_info
from .remote_paths import RemoteNames
from .storages import STORAGES
from .transfers import first_bytes
from .uploads import upload_bytes, upload_folder

__all__ = [
    "STORAGES",
    "RemoteNames",
    "cache_info",
    "first_bytes",
    "upload_bytes",
    "upload_folder",
]
