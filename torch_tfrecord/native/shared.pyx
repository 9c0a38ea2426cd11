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
    static uint32_t shared_load(uint32_t *count) { return __atomic_load_n(count, __ATOMIC_ACQUIRE); }
    static void shared_add(uint32_t *count) { __atomic_fetch_add(count, 1, __ATOMIC_ACQ_REL); }
    static void shared_subtract(uint32_t *count) { __atomic_fetch_sub(count, 1, __ATOMIC_ACQ_REL); }
    static void shared_store(uint32_t *count, uint32_t value) { __atomic_store_n(count, value, __ATOMIC_RELEASE); }
    """
    void *mmap(void *start, size_t size, int protection, int flags, int fd, long offset) nogil
    int munmap(void *start, size_t size) nogil
    int getpid() nogil
    int PROT_READ, PROT_WRITE, MAP_SHARED, MAP_NORESERVE
    void *MAP_FAILED
    int shared_forget(void *start, size_t size) nogil
    uint32_t shared_load(uint32_t *count) nogil
    void shared_add(uint32_t *count) nogil
    void shared_subtract(uint32_t *count) nogil
    void shared_store(uint32_t *count, uint32_t value) nogil

__all__ = ["HEADER_BYTES", "Mapping", "Piece"]

# Before each piece: its reference count, and padding to align the data for the widest instructions.
DEF HEADER = 64
HEADER_BYTES = HEADER


cdef class Mapping:
    """The first bytes of a file mapped into this process, until nobody holds the mapping or a piece of it.

    Args:
        fd: Descriptor of the file, which may be closed afterwards.
        size: Number of bytes, at least 1; the file must be at least as long.

    Raises:
        OSError: The system cannot map it.
    """

    cdef uint8_t *base
    cdef readonly Py_ssize_t size

    def __cinit__(self, int fd, Py_ssize_t size):
        if size < 1:
            raise ValueError(f"expected a size of at least 1, got {size}")
        cdef void *base = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0)
        if base == MAP_FAILED:
            PyErr_SetFromErrno(OSError)
        self.base, self.size = <uint8_t *>base, size

    @property
    def address(self):
        """Start address in this process."""
        return <uintptr_t>self.base

    def holders(self, Py_ssize_t start):
        """The reference count of the piece at this start."""
        self._check(start, HEADER)
        return shared_load(<uint32_t *>(self.base + start))

    def hold(self, Py_ssize_t start):
        """Add a reference for a message, whose receiver creates a `Piece` from it."""
        self._check(start, HEADER)
        shared_add(<uint32_t *>(self.base + start))

    def begin(self, Py_ssize_t start):
        """Start a piece with one reference, for the caller that creates a `Piece` from it."""
        self._check(start, HEADER)
        shared_store(<uint32_t *>(self.base + start), 1)

    def forget(self, Py_ssize_t start, Py_ssize_t num_bytes):
        """Return whole pages to the system.

        Raises:
            OSError: The system does not accept them.
        """
        self._check(start, num_bytes)
        if shared_forget(self.base + start, num_bytes) != 0:
            PyErr_SetFromErrno(OSError)

    cdef int _check(self, Py_ssize_t start, Py_ssize_t num_bytes) except -1:
        if start < 0 or num_bytes < 0 or start % HEADER or start > self.size - num_bytes:
            raise ValueError(f"expected {num_bytes} bytes at {start} in a mapping of {self.size}")
        return 0

    def __dealloc__(self):
        if self.base != NULL:
            munmap(self.base, self.size)


@cython.no_gc
cdef class Piece:
    """Writable memory with the buffer protocol; drops its reference to the piece when its last view is gone.

    In a child forked from its creator it does not count, as the creator still has its own.

    Args:
        mapping: Kept alive as long as this.
        start: Start of its header; the data starts `HEADER_BYTES` later.
        num_bytes: Size of the data.
    """

    cdef Mapping mapping
    cdef uint8_t *header
    cdef Py_ssize_t num_bytes
    cdef int maker

    def __cinit__(self, Mapping mapping not None, Py_ssize_t start, Py_ssize_t num_bytes):
        if num_bytes < 0 or num_bytes > mapping.size - HEADER:
            raise ValueError(f"expected at most {mapping.size - HEADER} bytes, got {num_bytes}")
        mapping._check(start, HEADER + num_bytes)
        self.mapping, self.num_bytes = mapping, num_bytes
        self.maker = getpid()
        self.header = mapping.base + start

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.header + HEADER, self.num_bytes, 0, flags)

    def __dealloc__(self):
        if self.header != NULL and self.maker == getpid():
            shared_subtract(<uint32_t *>self.header)
