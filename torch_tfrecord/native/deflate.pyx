# cython: boundscheck=False
"""Inflate a gzip or zlib stream, stopping at borders of its blocks: zlib's Z_BLOCK, which Python does not offer.

What begins at a border can be inflated without what comes before: only the last 32 KiB are needed.
"""

import zlib as _zlib

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize

__all__ = ["BlockInflater"]

cdef extern from "zlib.h" nogil:
    ctypedef struct z_stream:
        unsigned char *next_in
        unsigned int avail_in
        unsigned char *next_out
        unsigned int avail_out
        char *msg
        int data_type
    int inflateInit2(z_stream *stream, int window_bits)
    int inflate(z_stream *stream, int flush)
    int inflateEnd(z_stream *stream)
    int inflateCopy(z_stream *target, z_stream *source)
    int inflateGetDictionary(z_stream *stream, unsigned char *window, unsigned int *length)
    int Z_BLOCK, Z_OK, Z_STREAM_END, Z_BUF_ERROR

cdef enum:
    WINDOW = 32768
    END_OF_BLOCK = 128
    LAST_BLOCK = 64


cdef class BlockInflater:
    """Like `zlib.decompressobj`, but stops at the first border of two blocks after `left` bytes.

    Args:
        window_bits: As of zlib: 31 for gzip, 15 for zlib.
        left: Bytes to inflate before it looks for a border.

    Attributes:
        left: Set it after a border to go on to one further behind.
        is_at_border: Whether it stopped at one: the next bit to read begins a block.
        unused_bits: Of the last byte that was read, those that belong to that block: 0 to 7.
    """

    cdef z_stream stream
    cdef bint is_open
    cdef public long long left
    cdef readonly bint eof, is_at_border
    cdef readonly int unused_bits
    cdef readonly bytes unused_data, unconsumed_tail

    def __cinit__(self, int window_bits, long long left, bint is_empty=False):
        self.left = left
        self.unused_data = self.unconsumed_tail = b""
        if not is_empty:
            if inflateInit2(&self.stream, window_bits) != Z_OK:
                raise MemoryError("zlib")
            self.is_open = True

    def __dealloc__(self):
        if self.is_open:
            inflateEnd(&self.stream)

    def copy(self):
        """The same state once more."""
        cdef BlockInflater other = BlockInflater.__new__(BlockInflater, 0, self.left, True)
        if inflateCopy(&other.stream, &self.stream) != Z_OK:
            raise MemoryError("zlib")
        other.is_open = True
        other.eof = self.eof
        return other

    def decompress(self, bytes data not None, unsigned int max_length=1 << 18):
        """Up to `max_length` bytes, fewer before a border; `unconsumed_tail` is what it did not read.

        Raises zlib.error where the stream is damaged.
        """
        cdef bytes out = PyBytes_FromStringAndSize(NULL, max_length)
        cdef unsigned int before
        cdef int code = Z_OK
        self.is_at_border = False
        self.stream.next_in = <unsigned char *>PyBytes_AS_STRING(data)
        self.stream.avail_in = <unsigned int>len(data)
        self.stream.next_out = <unsigned char *>PyBytes_AS_STRING(out)
        self.stream.avail_out = max_length
        with nogil:
            while True:
                before = self.stream.avail_out
                code = inflate(&self.stream, Z_BLOCK)
                self.left -= before - self.stream.avail_out
                if code != Z_OK or self.stream.avail_out == 0:
                    break
                if self.stream.data_type & END_OF_BLOCK:
                    if self.left <= 0 and not self.stream.data_type & LAST_BLOCK:
                        self.is_at_border = True
                        break
                elif self.stream.avail_in == 0:
                    break
        tail = data[len(data) - self.stream.avail_in:]
        if code == Z_STREAM_END:
            self.eof, self.unused_data, self.unconsumed_tail = True, tail, b""
        elif code == Z_OK or code == Z_BUF_ERROR:
            self.unconsumed_tail = tail
            self.unused_bits = self.stream.data_type & 7
        else:
            reason = (<bytes>self.stream.msg).decode() if self.stream.msg != NULL else "invalid data"
            raise _zlib.error(f"Error {code} while decompressing data: {reason}")
        return out[:max_length - self.stream.avail_out]

    def window(self):
        """The last bytes that were inflated, 32 KiB at most."""
        cdef unsigned int length = 0
        cdef bytes found = PyBytes_FromStringAndSize(NULL, WINDOW)
        inflateGetDictionary(&self.stream, <unsigned char *>PyBytes_AS_STRING(found), &length)
        return found[:length]
