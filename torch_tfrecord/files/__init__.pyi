from .access import Access, open_file
from .atomic import AtomicFile, HiddenFolder
from .local_file import Descriptor, LocalFile, open_path, read_pieces
from .storage import FileSource, RemoteInfo, SequentialSource, is_remote, local_path

__all__ = [
    "Access",
    "AtomicFile",
    "Descriptor",
    "FileSource",
    "HiddenFolder",
    "LocalFile",
    "RemoteInfo",
    "SequentialSource",
    "is_remote",
    "local_path",
    "open_file",
    "open_path",
    "read_pieces",
]
