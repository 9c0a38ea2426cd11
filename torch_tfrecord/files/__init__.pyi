from .access import DEFAULT_ACCESS, Access, user_cache
from .atomic import AtomicFile, HiddenFolder, hidden_name
from .descriptors import Descriptor, open_path, reserve_descriptor
from .forward import SequentialSource
from .read import read_local_records, read_pieces
from .storage import (
    FileSource,
    LocalFile,
    RangeReader,
    RemoteInfo,
    SourceRange,
    is_remote,
    local_path,
    open_file,
    open_files,
    open_in_turn,
)

__all__ = [
    "DEFAULT_ACCESS",
    "Access",
    "AtomicFile",
    "Descriptor",
    "FileSource",
    "HiddenFolder",
    "LocalFile",
    "RangeReader",
    "RemoteInfo",
    "SequentialSource",
    "SourceRange",
    "hidden_name",
    "is_remote",
    "local_path",
    "open_file",
    "open_files",
    "open_in_turn",
    "open_path",
    "read_local_records",
    "read_pieces",
    "reserve_descriptor",
    "user_cache",
]
