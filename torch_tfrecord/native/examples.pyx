# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Serialized tf.train.Examples of rows of values, and of columns, framed as the records of a file.

What protobuf writes for the same values, deterministically: keys in the order of their bytes, lists packed. The Python
fallback is `RowEncoder`, by protobuf's own messages.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport (
    PyByteArray_AS_STRING, PyByteArray_FromStringAndSize, PyByteArray_GET_SIZE, PyByteArray_Resize)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItemWithError, PyDict_Size
from cpython.float cimport PyFloat_AS_DOUBLE
from cpython.long cimport PyLong_AsLongLongAndOverflow
from cpython.memoryview cimport PyMemoryView_FromObject
from cpython.object cimport PyObject
from libc.math cimport isfinite, isinf
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

cdef extern from "crc32c.h":
    void crc32c_init()
    uint32_t crc32c_masked(const uint8_t *data, size_t size) noexcept nogil

cdef extern from *:
    int __builtin_clzll(unsigned long long) noexcept nogil

__all__ = ["RowLayout", "encode_columns"]

crc32c_init()

# The kinds of a Feature's list, by their field numbers.
cdef enum:
    ANY = 0
    BYTES = 1
    FLOAT = 2
    INT64 = 3

cdef tuple KINDS = (None, "bytes_list", "float_list", "int64_list")

cdef enum:
    FIELD_1 = 0x0A  # tag of a field with a length
    FIELD_2 = 0x12
    HEADER = 12
    FOOTER = 4
    # The frame of a row, the field of its features, and what is overwritten before.
    MOST_OVERHEAD = 40
    MOST_KEPT = 1 << 24
    # Protobuf's limit for messages.
    MAX_LENGTH = 0x7FFFFFFF


cdef struct Source:
    # The values of one key, in rows.
    const uint8_t *key
    int64_t key_length
    int kind
    int64_t wanted  # how many a row has to have, see RowLayout
    const uint8_t *data  # int64, float32 or the bytes of strings, one after the other
    const int64_t *offsets  # of strings: where each begins in the data, and the last ends
    const int64_t *splits  # the same for the values of rows
    const uint8_t *missing  # whether rows lack the key; NULL: none does


cdef inline int64_t varint_size(uint64_t value) noexcept nogil:
    return ((64 - __builtin_clzll(value | 1)) * 9 + 64) // 64


# All is written from its end to its begin: a length, which comes before what it counts, is known by then.


cdef inline uint8_t *put_varint(uint8_t *end, uint64_t value) noexcept nogil:
    # Up to eight bytes before the begin are overwritten, too.
    cdef int64_t size, number
    if value < 0x80:
        (end - 1)[0] = <uint8_t>value
        return end - 1
    size = varint_size(value)
    if size <= 8:
        # Seven bits into each byte, and the top bit in all but the last.
        value = (value & 0x0FFFFFFFULL) | (value & 0xFFFFFFF0000000ULL) << 4
        value = (value & 0x00003FFF00003FFFULL) | (value & 0x0FFFC0000FFFC000ULL) << 2
        value = (value & 0x007F007F007F007FULL) | (value & 0x3F803F803F803F80ULL) << 1
        value |= 0x80808080808080ULL >> (64 - 8 * size)
        value <<= 64 - 8 * size
        memcpy(end - 8, &value, 8)
    else:
        for number in range(size):
            end[number - size] = <uint8_t>(value | 0x80 * (number < size - 1))
            value >>= 7
    return end - size


cdef inline uint8_t *put_field(uint8_t *at, uint8_t tag, int64_t length) noexcept nogil:
    # Before so many bytes.
    at = put_varint(at, length) - 1
    at[0] = tag
    return at


cdef int64_t most_bytes(const Source *source, int64_t num_rows) noexcept nogil:
    # That the values of a key can take in Examples.
    cdef int64_t begin = source.splits[0], end = source.splits[num_rows], most = 10 * (end - begin)
    if source.kind == BYTES:
        most += source.offsets[end] - source.offsets[begin]
    # No field counts more than all of them.
    return most + num_rows * (source.key_length + 5 * (1 + varint_size(most + source.key_length + 64)))


cdef uint8_t *put_entry(uint8_t *at, const Source *source, int64_t row) noexcept nogil:
    cdef const uint8_t *end = at
    cdef int64_t begin = source.splits[row], count = source.splits[row + 1] - begin, value, length
    if source.missing != NULL and source.missing[row]:
        return at
    if source.kind == FLOAT:
        at -= 4 * count
        memcpy(at, source.data + 4 * begin, 4 * count)
    for value in range(begin + count - 1, begin - 1, -1):
        if source.kind == INT64:
            at = put_varint(at, (<const uint64_t *>source.data)[value])
        elif source.kind == BYTES:
            length = source.offsets[value + 1] - source.offsets[value]
            at -= length
            memcpy(at, source.data + source.offsets[value], length)
            at = put_field(at, FIELD_1, length)
    # Numbers are packed into one field.
    if source.kind != BYTES and count:
        at = put_field(at, FIELD_1, end - at)
    at = put_field(at, <uint8_t>(source.kind << 3 | 2), end - at)
    at = put_field(at, FIELD_2, end - at) - source.key_length
    memcpy(at, source.key, source.key_length)
    at = put_field(at, FIELD_1, source.key_length)
    return put_field(at, FIELD_1, end - at)


cdef uint8_t *put_example(uint8_t *at, const Source *sources, int64_t count, int64_t row) noexcept nogil:
    cdef const uint8_t *end = at
    cdef int64_t number
    for number in range(count - 1, -1, -1):
        at = put_entry(at, &sources[number], row)
    return put_field(at, FIELD_1, end - at)


cdef uint8_t *put_record(
    uint8_t *at, const Source *sources, int64_t count, int64_t row, int64_t *length
) noexcept nogil:
    # Framed; and the length of its payload.
    cdef uint8_t *end = at - FOOTER
    cdef uint32_t checksum
    at = put_example(end, sources, count, row)
    length[0] = end - at
    checksum = crc32c_masked(at, length[0])
    memcpy(end, &checksum, 4)
    memcpy(at - HEADER, length, 8)
    checksum = crc32c_masked(at - HEADER, 8)
    memcpy(at - 4, &checksum, 4)
    return at - HEADER


cdef bytearray room(bytearray memory, int64_t size):
    # So much memory: the given one, which grows, unless it would be too much to keep.
    if size > MOST_KEPT:
        return PyByteArray_FromStringAndSize(NULL, size)
    if PyByteArray_GET_SIZE(memory) < size:
        PyByteArray_Resize(memory, size)
    return memory


cdef const uint8_t *memory_of(values, list kept, int64_t *num_bytes) except? NULL:
    # The memory of an object with a buffer, which is kept as long as the list is.
    cdef Py_buffer view
    PyObject_GetBuffer(values, &view, PyBUF_SIMPLE)
    kept.append(values)
    num_bytes[0] = view.len
    PyBuffer_Release(&view)
    return <const uint8_t *>view.buf


cdef list in_order(list items):
    # With their keys, which come first, as bytes. Protobuf sorts so: "ab" before "a".
    found = [(key.encode(), *rest) for key, *rest in items]
    return sorted(found, key=lambda item: item[0] + b"\xff")


cdef class RowLayout:
    """Encodes rows that are dicts of the same names.

    Args:
        items: For each value: its key, its name in a row, the name of its list (None for any), how many values that has
            to have (-1 for any number, -2 where the last has to be asked), and a function of a value that is not simply
            one of the kind: the name of its list, the values (int64 or float32 array, or list of bytes), and a shape; or
            None where the record lacks the key.
    """

    cdef list names, keys, encoders
    cdef Source *sources
    cdef int64_t count

    def __cinit__(self, list items not None):
        cdef int64_t number
        items = in_order(items)
        self.keys, self.names, self.encoders = ([item[place] for item in items] for place in (0, 1, 4))
        self.count = len(items)
        self.sources = <Source *>malloc((self.count + 1) * sizeof(Source))
        if self.sources == NULL:
            raise MemoryError
        for number, (key, _, kind, wanted, _) in enumerate(items):
            self.sources[number] = Source(
                <const uint8_t *>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key), KINDS.index(kind), wanted, NULL, NULL,
                NULL, NULL)

    def __dealloc__(self):
        free(self.sources)

    def encode(self, dict row not None, bytearray memory not None, bint framed=False):
        """The Example of a row; None where protobuf should make it, or say what is wrong.

        Args:
            memory: To write in; it grows.
            framed: Whether to return the record, framed. Either is a view of the memory.
        """
        cdef int64_t number, count = self.count, num_found = 0, size = MOST_OVERHEAD, length = 0
        cdef PyObject *found
        cdef list kept = []
        cdef uint8_t *begin
        cdef uint8_t *at
        # Sources, and four numbers for each.
        cdef Source *sources = <Source *>malloc((count + 1) * (sizeof(Source) + 4 * sizeof(int64_t)))
        if sources == NULL:
            raise MemoryError
        try:
            memcpy(sources, self.sources, count * sizeof(Source))
            for number in range(count):
                found = PyDict_GetItemWithError(row, self.names[number])
                num_found += found != NULL
                value = None if found == NULL else <object>found
                if not self._take(&sources[number], <int64_t *>(sources + count + 1) + 4 * number, number, value, kept):
                    return None
                size += most_bytes(&sources[number], 1)
            if num_found != PyDict_Size(row):
                return None
            memory = room(memory, size)
            begin = <uint8_t *>PyByteArray_AS_STRING(memory)
            at = put_record(begin + size, sources, count, 0, &length)
            if length > MAX_LENGTH:
                return None
            view = PyMemoryView_FromObject(memory)[at - begin:size]
            return view if framed else view[HEADER:-FOOTER]
        finally:
            free(sources)

    cdef bint _take(self, Source *source, int64_t *own, int64_t number, value, list kept) except -1:
        # Fill in the values of the row; False if they are not of the kind.
        cdef int64_t wanted = source.wanted, num_bytes = 0, place = 0
        cdef int overflow = 0
        cdef float single
        cdef bint is_single = wanted == 1 or wanted == -1
        # One row, and one value in it: a number, or the bytes up to the second offset.
        own[0], own[1], own[2], own[3] = 0, 1, 0, 0
        source.splits, source.offsets, source.data = own, own + 2, <const uint8_t *>(own + 2)
        if source.kind == ANY:
            source.kind = (INT64 if type(value) is int else FLOAT if type(value) is float
                           else BYTES if type(value) is bytes or type(value) is str else ANY)
        if is_single and source.kind == INT64 and type(value) is int:
            own[2] = PyLong_AsLongLongAndOverflow(value, &overflow)
            return not overflow
        if is_single and source.kind == FLOAT and type(value) is float:
            single = <float>PyFloat_AS_DOUBLE(value)
            memcpy(own + 2, &single, sizeof(single))
            return not (isinf(single) and isfinite(PyFloat_AS_DOUBLE(value)))
        try:
            if is_single and source.kind == BYTES and type(value) is str:
                value = (<str>value).encode()
            if is_single and source.kind == BYTES and type(value) is bytes:
                source.data = memory_of(value, kept, &own[3])
                return True
            found = self.encoders[number](value)
        except (TypeError, ValueError):
            return False
        if found is None:
            source.missing, own[1] = <const uint8_t *>b"\1", 0
            return True
        kind, values, _ = found
        if source.kind == ANY:
            source.kind = KINDS.index(kind)
        if kind != KINDS[source.kind]:
            return False
        if source.kind != BYTES:
            source.data = memory_of(values, kept, &num_bytes)
            own[1] = num_bytes // (8 if source.kind == INT64 else 4)
            return True
        own[1] = len(<list?>values)
        offsets = PyBytes_FromStringAndSize(NULL, 8 * (own[1] + 1))
        source.offsets = <const int64_t *>memory_of(offsets, kept, &num_bytes)
        for number in range(own[1]):
            (<int64_t *>source.offsets)[number] = place
            place += len(<bytes?>values[number])
        (<int64_t *>source.offsets)[own[1]] = place
        source.data = memory_of(b"".join(values) if own[1] != 1 else values[0], kept, &num_bytes)
        return True


def encode_columns(list columns not None, int64_t[::1] lengths not None, bytearray memory not None):
    """The records of rows, framed, one after the other.

    Args:
        columns: For each key: the key, the name of its list, values (int64, float32 or the bytes of strings), offsets of
            the strings or None, splits of the rows (int64), and which rows lack the key (uint8) or None.
        lengths: [N], receives the length of each payload.
        memory: Where to write them; it grows.

    Raises:
        ValueError: The arrays do not fit; an Example would have 2 GiB.
    """
    cdef int64_t num_rows = lengths.shape[0], count = len(columns), number, row, wrong = -1, size
    cdef list kept = []
    cdef Source *sources = <Source *>malloc((count + 1) * sizeof(Source))
    cdef uint8_t *begin
    cdef uint8_t *at
    try:
        if sources == NULL:
            raise MemoryError
        size = num_rows * MOST_OVERHEAD
        for number, column in enumerate(in_order(columns)):
            take_column(&sources[number], column, num_rows, kept)
            size += most_bytes(&sources[number], num_rows)
        memory = room(memory, size)
        view = PyMemoryView_FromObject(memory)  # so that no other thread resizes it meanwhile
        begin = <uint8_t *>PyByteArray_AS_STRING(memory)
        at = begin + size
        with nogil:
            for row in range(num_rows - 1, -1, -1):
                at = put_record(at, sources, count, row, &lengths[row])
                if lengths[row] > MAX_LENGTH:
                    wrong = row
        if wrong >= 0:
            raise ValueError(f"row {wrong}: expected an Example of less than 2 GiB, got {lengths[wrong]} bytes")
        return view[at - begin:size]
    finally:
        free(sources)


cdef take_column(Source *source, tuple column, int64_t num_rows, list kept):
    # Check what is used without a look at it afterwards.
    cdef int64_t num_bytes = 0, num_values, before = 0
    key, kind, values, offsets, splits, missing = column
    source.key, source.kind = memory_of(key, kept, &source.key_length), KINDS.index(kind)
    source.data = memory_of(values, kept, &num_bytes)
    source.offsets = source.splits = NULL
    source.missing = NULL
    num_values = num_bytes // (8 if source.kind == INT64 else 4)
    if source.kind == BYTES:
        num_values = check_ascending(&source.offsets, offsets, num_bytes, kept)
    if check_ascending(&source.splits, splits, num_values, kept) != num_rows:
        raise ValueError(f"expected splits of {num_rows} rows")
    if missing is not None:
        source.missing = memory_of(missing, kept, &num_bytes)
        if num_bytes != num_rows:
            raise ValueError(f"expected to know of {num_rows} rows whether they lack the key, got {num_bytes}")


cdef int64_t check_ascending(const int64_t **found, numbers, int64_t most, list kept) except -1:
    # That they divide so many things; the number of parts.
    cdef int64_t num_bytes = 0, number, count, before = 0
    cdef const int64_t *memory = <const int64_t *>memory_of(numbers, kept, &num_bytes)
    count = num_bytes // 8 - 1
    with nogil:
        for number in range(count + 1):
            if not before <= memory[number] <= most:
                break
            before = memory[number]
        else:
            number = -1
    if number >= 0 or count < 0:
        raise ValueError(f"expected numbers from 0 to {most} that do not descend, at {number}")
    found[0] = memory
    return count
