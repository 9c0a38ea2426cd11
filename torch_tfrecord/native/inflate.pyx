"""Deflate streams by zlib's own calls, which say where a block ends, as in zlib's examples/zran.c; without this
module a stream of another writer can be entered at its members alone.
"""

import zlib

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t

cdef extern from "zlib.h" nogil:
    ctypedef struct z_stream:
        const uint8_t *next_in
        unsigned int avail_in
        uint8_t *next_out
        unsigned int avail_out
        int data_type
    enum:
        Z_OK
        Z_STREAM_END
        Z_BUF_ERROR
        Z_BLOCK
    int inflateInit2(z_stream *, int)
    int inflate(z_stream *, int)
    int inflateSetDictionary(z_stream *, const uint8_t *, unsigned int)
    int inflateGetDictionary(z_stream *, uint8_t *, unsigned int *)
    int inflateEnd(z_stream *)

__all__ = ["decompressobj", "error"]

error = zlib.error


cdef class decompressobj:
    """zlib's decompression object, which also says where a block ended. For one thread at a time.

    Attributes:
        border: Of the last call: a place in its output, the bit in its input where the next block begins, and up to
            32 KiB before it; None where no block ended, or only the last one.
    """

    cdef z_stream stream
    cdef readonly bint eof
    cdef readonly bytes unconsumed_tail, unused_data
    cdef readonly tuple border

    def __cinit__(self, int wbits, bytes zdict=b""):
        self.unconsumed_tail = self.unused_data = b""
        if inflateInit2(&self.stream, wbits) != Z_OK or (
            zdict and inflateSetDictionary(&self.stream, zdict, <unsigned int> len(zdict)) != Z_OK
        ):
            raise MemoryError("zlib has no memory, or refuses the window")

    def __dealloc__(self):
        inflateEnd(&self.stream)

    def decompress(self, const uint8_t[::1] data not None, unsigned int max_length):
        """Up to `max_length` bytes: see `zlib.Decompress.decompress`.

        Raises:
            error: The stream is damaged.
        """
        cdef bytes out = PyBytes_FromStringAndSize(NULL, max_length)
        cdef uint8_t window[1 << 15]
        cdef unsigned int size = 0, length = <unsigned int> data.shape[0]
        cdef int code = Z_OK
        cdef z_stream *stream = &self.stream
        cdef z_stream at = self.stream
        stream.next_in, stream.avail_in = &data[0] if length else NULL, length
        stream.next_out, stream.avail_out = <uint8_t *> PyBytes_AS_STRING(out), max_length
        with nogil:
            while code == Z_OK:
                code = inflate(stream, Z_BLOCK)
                # 128: a block or the header ended; 64: it was the last block; below: bits left of the last byte.
                if code == Z_OK and not size and stream.data_type & 192 == 128:
                    inflateGetDictionary(stream, window, &size)
                    at = stream[0]
        if code not in (Z_OK, Z_STREAM_END, Z_BUF_ERROR):
            raise error(f"zlib's error {code}")
        self.border = None
        if size:
            bit = 8 * (length - at.avail_in) - (at.data_type & 7)
            self.border = max_length - at.avail_out, bit, (<char *> window)[:size]
        self.eof = code == Z_STREAM_END
        rest = bytes(data[length - stream.avail_in :])
        self.unused_data, self.unconsumed_tail = (rest, b"") if self.eof else (b"", rest)
        return out[: max_length - stream.avail_out]
