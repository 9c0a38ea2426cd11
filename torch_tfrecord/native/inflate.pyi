import zlib

__all__: list[str]

error = zlib.error

class decompressobj:  # noqa: N801 - as in zlib
    eof: bool
    unused_data: bytes
    unconsumed_tail: bytes
    border: tuple[int, int, bytes] | None
    def __init__(self, wbits: int, zdict: bytes = b"") -> None: ...
    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...
