# cython: boundscheck=False, wraparound=False, initializedcheck=False
"""Memory that is used again; the twin in `batch_memory` takes fresh memory each time."""

from cpython.buffer cimport PyBuffer_FillInfo
from libc.stddef cimport size_t
from libc.stdint cimport uint8_t

cdef extern from "blocks.h":
    ctypedef struct block_header:
        size_t capacity
    block_header *block_new(size_t size) nogil
    void block_give_back(block_header *block) nogil
    uint8_t *block_data(block_header *block) nogil

__all__ = ["Block"]


cdef class Block:
    """Writable memory, not cleared, for the buffer protocol; goes back when its last view is gone.

    Args:
        size: Bytes, at least 0.

    Raises:
        MemoryError: There is not that much.
    """

    cdef block_header *block
    cdef Py_ssize_t size

    def __cinit__(self, Py_ssize_t size):
        if size < 0:
            raise ValueError(f"expected a size of at least 0, got {size}")
        self.size = size
        self.block = block_new(size)
        if self.block == NULL:
            raise MemoryError(f"no {size} bytes of memory")

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, block_data(self.block), self.size, 0, flags)

    def __dealloc__(self):
        if self.block != NULL:
            block_give_back(self.block)
