# cython: boundscheck=False, wraparound=False, initializedcheck=False
"""Memory shared between processes: a file that each maps, and reference-counted pieces of it.

If this module was not built, its user `shared_memory` falls back to torch's own transfer of batches from workers.
"""

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from cpython.exc cimport PyErr_SetFromErrno
from libc.stdint cimport uint8_t, uint32_t, uintptr_t

cdef extern from *:
    """
    #include <errno.h>
    #include <sys/mman.h>
    #include <unistd.h>
    #ifndef MAP_NORESERVE
    #define MAP_NORESERVE 0
    #endif
    /* Return pages of a shared file to the system: they read as zeros afterwards, in every process. */
    static int shared_forget(void *start, size_t size) {
    #ifdef MADV_REMOVE
        return madvise(start, size, MADV_REMOVE);
    #else
        errno = ENOSYS;
        return -1;
    #endif
    }
    """
    void *mmap(void *start, size_t size, int protection, int flags, int fd, long offset) nogil
    int munmap(void *start, size_t size) nogil
    int PROT_READ, PROT_WRITE, MAP_SHARED, MAP_NORESERVE
    void *MAP_FAILED
    int shared_forget(void *start, size_t size) nogil

cdef extern from "pieces.h":
    int PIECES_HEADER
    ctypedef struct piece_header:
        pass
    ctypedef struct piece_link:
        pass
    void piece_add(piece_header *header) nogil
    void piece_begin(piece_header *header) nogil
    uint32_t piece_holders(piece_header *header) nogil
    void piece_take(piece_link *link, piece_header *header) nogil
    void piece_let_go(piece_link *link) nogil
    int pieces_follow_forks() nogil

__all__ = ["HEADER_BYTES", "Mapping", "Piece"]

# Before each piece: who holds it.
HEADER_BYTES = PIECES_HEADER
if pieces_follow_forks():
    raise ImportError("the system cannot follow forks")


cdef class Mapping:
    """A part of a file mapped into this process, until nobody holds the mapping or a piece of it.

    Args:
        fd: Descriptor of the file, which may be closed afterwards.
        size: Number of bytes, at least 1; the file must have them.
        begin: Where in the file it begins, at a page. All places are bytes of the file.

    Raises:
        OSError: The system cannot map it.
    """

    cdef uint8_t *base
    cdef readonly Py_ssize_t size
    cdef Py_ssize_t begins

    def __cinit__(self, int fd, Py_ssize_t size, Py_ssize_t begin=0):
        if size < 1 or begin < 0:
            raise ValueError(f"expected a size of at least 1, and a begin of at least 0, got {size} and {begin}")
        cdef void *base = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, begin)
        if base == MAP_FAILED:
            PyErr_SetFromErrno(OSError)
        self.base, self.size, self.begins = <uint8_t *>base, size, begin

    @property
    def address(self):
        """Start address in this process."""
        return <uintptr_t>self.base

    def holders(self, Py_ssize_t start):
        """How many hold the piece at this start: messages, and processes as often as they have it."""
        return piece_holders(self._header(start))

    def hold(self, Py_ssize_t start):
        """Add a reference for a message, whose receiver creates a `Piece` from it."""
        piece_add(self._header(start))

    def begin(self, Py_ssize_t start):
        """Start a piece with one reference, for the caller that creates a `Piece` from it."""
        piece_begin(self._header(start))

    def forget(self, Py_ssize_t start, Py_ssize_t num_bytes):
        """Return whole pages to the system.

        Raises:
            OSError: The system does not accept them.
        """
        if shared_forget(self._at(start, num_bytes), num_bytes) != 0:
            PyErr_SetFromErrno(OSError)

    cdef piece_header *_header(self, Py_ssize_t start) except NULL:
        return <piece_header *>self._at(start, PIECES_HEADER)

    cdef uint8_t *_at(self, Py_ssize_t start, Py_ssize_t num_bytes) except NULL:
        cdef Py_ssize_t place = start - self.begins
        if start < self.begins or num_bytes < 0 or place % PIECES_HEADER or place > self.size - num_bytes:
            raise ValueError(f"expected {num_bytes} bytes at {start} in a mapping of {self.size} at {self.begins}")
        return self.base + place

    def __dealloc__(self):
        if self.base != NULL:
            munmap(self.base, self.size)


@cython.no_gc
cdef class Piece:
    """Writable memory with the buffer protocol; drops its reference to the piece when its last view is gone.

    A process forked from its creator has one, too: it counts until it lets go or ends.

    Args:
        mapping: Kept alive as long as this.
        start: Start of its header; the data starts `HEADER_BYTES` later.
        num_bytes: Size of the data.
    """

    cdef Mapping mapping
    cdef uint8_t *data
    cdef Py_ssize_t num_bytes
    cdef piece_link link

    def __cinit__(self, Mapping mapping not None, Py_ssize_t start, Py_ssize_t num_bytes):
        if num_bytes < 0 or num_bytes > mapping.size - PIECES_HEADER:
            raise ValueError(f"expected at most {mapping.size - PIECES_HEADER} bytes, got {num_bytes}")
        cdef uint8_t *header = mapping._at(start, PIECES_HEADER + num_bytes)
        self.mapping, self.num_bytes = mapping, num_bytes
        piece_take(&self.link, <piece_header *>header)
        self.data = header + PIECES_HEADER

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.data, self.num_bytes, 0, flags)

    def __dealloc__(self):
        if self.data != NULL:
            piece_let_go(&self.link)
