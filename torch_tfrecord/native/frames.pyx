# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Loops over frames and checksums of TFRecord files; the twins are in `walk`, `storage`, `reader`, `packed_records`.

Nothing in the bytes is trusted: a length is held against what is left of the buffer before it is used, in a form that
cannot overflow. Errors are not worded here: these functions say where they stopped, and Python says what is wrong.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.list cimport PyList_New, PyList_SET_ITEM
from cpython.ref cimport Py_INCREF
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

cdef extern from "crc32c.h":
    const char *crc32c_name
    void crc32c_init()
    uint32_t crc32c_extend(uint32_t crc, const uint8_t *data, size_t size) noexcept nogil
    uint32_t crc32c_masked(const uint8_t *data, size_t size) noexcept nogil
    uint64_t load_le64(const uint8_t *data) noexcept nogil
    uint32_t load_le32(const uint8_t *data) noexcept nogil

cdef extern from "<sys/types.h>":
    ctypedef long off_t

cdef extern from "<unistd.h>":
    ssize_t pread(int fd, void *buffer, size_t size, off_t offset) noexcept nogil

cdef extern from "<sys/uio.h>":
    struct iovec:
        void *iov_base
        size_t iov_len
    ssize_t preadv(int fd, const iovec *parts, int count, off_t offset) noexcept nogil

__all__ = ["BAD_HEADER", "BAD_PAYLOAD", "DONE", "INCOMPLETE", "checksum_by", "crc32c", "first_bad", "max_records",
           "read_ranges", "read_record", "slices", "walk"]

crc32c_init()
checksum_by = crc32c_name.decode()

# Why a walk stopped.
cdef enum:
    _DONE, _INCOMPLETE, _BAD_HEADER, _BAD_PAYLOAD

DONE, INCOMPLETE, BAD_HEADER, BAD_PAYLOAD = _DONE, _INCOMPLETE, _BAD_HEADER, _BAD_PAYLOAD

cdef enum:
    _HEADER = 12
    _OVERHEAD = 16
    _LENGTH = 8
    _SMALL = 1 << 14  # below, giving the GIL away costs more than the work


cdef inline bint _is_header(const uint8_t *at) noexcept nogil:
    return crc32c_masked(at, _LENGTH) == load_le32(at + _LENGTH)


cdef inline bint _is_payload(const uint8_t *payload, size_t length) noexcept nogil:
    return crc32c_masked(payload, length) == load_le32(payload + length)


def crc32c(const uint8_t[::1] data, uint32_t value=0):
    """CRC-32C of bytes, going on from that of the bytes before."""
    cdef size_t size = data.shape[0]
    if size < _SMALL:
        return crc32c_extend(value, &data[0], size)
    with nogil:
        value = crc32c_extend(value, &data[0], size)
    return value


def max_records(const uint8_t[::1] buffer):
    """At least as many as there are complete records at the front of a buffer; no checksum is looked at."""
    cdef const uint8_t *data = &buffer[0]
    cdef uint64_t left = buffer.shape[0], length
    cdef Py_ssize_t count = 0
    with nogil:
        while left >= _OVERHEAD:
            length = load_le64(data)
            if length > left - _OVERHEAD:
                break
            data += length + _OVERHEAD
            left -= length + _OVERHEAD
            count += 1
    return count


def walk(const uint8_t[::1] buffer, int64_t[::1] starts, int64_t[::1] lengths, bint verify):
    """Find the complete records at the front of a buffer, as many as `starts` and `lengths` hold.

    Returns how many were found, the bytes they fill, why the walk stopped, and the length of the incomplete record.
    """
    cdef const uint8_t *data = &buffer[0]
    cdef Py_ssize_t limit = min(starts.shape[0], lengths.shape[0]), count = 0
    cdef uint64_t size = buffer.shape[0], at = 0, length = 0
    cdef int why = _DONE
    with nogil:
        while size - at >= _HEADER:
            length = load_le64(data + at)
            if not _is_header(data + at):
                why = _BAD_HEADER
                break
            if size - at < _OVERHEAD or length > size - at - _OVERHEAD:
                why = _INCOMPLETE
                break
            if verify and not _is_payload(data + at + _HEADER, length):
                why = _BAD_PAYLOAD
                break
            if count == limit:
                break
            starts[count] = at + _HEADER
            lengths[count] = length
            count += 1
            at += length + _OVERHEAD
    return count, at, why, length


def first_bad(const uint8_t[::1] buffer, const int64_t[:] places, const int64_t[:] lengths, bint verify):
    """Number of the first place at which there is no good record of that length; -1 where all are good."""
    cdef const uint8_t *data = &buffer[0]
    cdef Py_ssize_t number, bad = -1, count = min(places.shape[0], lengths.shape[0])
    cdef int64_t size = buffer.shape[0], at, length
    with nogil:
        for number in range(count):
            at, length = places[number], lengths[number]
            if (at < 0 or length < 0 or at > size or size - at < _OVERHEAD or length > size - at - _OVERHEAD
                    or load_le64(data + at) != <uint64_t>length or not _is_header(data + at)
                    or (verify and not _is_payload(data + at + _HEADER, length))):
                bad = number
                break
    return bad


def slices(const uint8_t[::1] buffer, const int64_t[:] starts, const int64_t[:] lengths):
    """Copies of parts of a buffer; ValueError where one is not inside it."""
    cdef const char *data = <const char *>&buffer[0]
    cdef Py_ssize_t number, count = starts.shape[0]
    cdef int64_t size = buffer.shape[0]
    if lengths.shape[0] != count:
        raise ValueError(f"expected as many starts as lengths, got {count} and {lengths.shape[0]}")
    for number in range(count):
        if starts[number] < 0 or lengths[number] < 0 or lengths[number] > size - starts[number]:
            raise ValueError(f"expected parts of a buffer of {size} bytes, "
                             f"got {lengths[number]} bytes from {starts[number]}")
    parts = PyList_New(count)
    for number in range(count):
        part = PyBytes_FromStringAndSize(data + starts[number], lengths[number])
        Py_INCREF(part)  # the list takes one over
        PyList_SET_ITEM(parts, number, part)
    return parts


def read_ranges(int fd, const int64_t[:] begins, const int64_t[:] sizes, uint8_t[::1] buffer, const int64_t[:] starts):
    """Read ranges of a file, each to its place in the buffer; returns how many came whole before the first doubt."""
    cdef uint8_t *data = &buffer[0]
    cdef int64_t size = buffer.shape[0]
    cdef Py_ssize_t number, done = 0, count = min(begins.shape[0], sizes.shape[0], starts.shape[0])
    with nogil:
        for number in range(count):
            if starts[number] < 0 or sizes[number] < 0 or sizes[number] > size - starts[number] or begins[number] < 0:
                break
            if pread(fd, data + starts[number], sizes[number], begins[number]) != sizes[number]:
                break
            done += 1
    return done


def read_record(int fd, int64_t offset, int64_t length, bint verify):
    """Payload of the record at an offset, which must be `length` bytes long; None in any doubt."""
    cdef uint8_t header[_HEADER]
    cdef uint8_t footer[_OVERHEAD - _HEADER]
    cdef iovec parts[3]
    cdef bint good
    cdef char *data
    if length < 0 or offset < 0:
        return None
    payload = PyBytes_FromStringAndSize(NULL, length)
    data = PyBytes_AS_STRING(payload)
    parts[0].iov_base, parts[0].iov_len = header, _HEADER
    parts[1].iov_base, parts[1].iov_len = data, length
    parts[2].iov_base, parts[2].iov_len = footer, _OVERHEAD - _HEADER
    with nogil:
        good = (preadv(fd, parts, 3, offset) == length + _OVERHEAD
                and load_le64(header) == <uint64_t>length and _is_header(header)
                and (not verify or crc32c_masked(<const uint8_t *>data, length) == load_le32(footer)))
    return payload if good else None
