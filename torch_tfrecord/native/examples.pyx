# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Serialized tf.train.Examples of rows of values, and of columns, framed as the records of a file.

What protobuf writes for the same values, deterministically: keys in the order of their bytes, lists packed. The Python
fallback is `RowEncoder`, by protobuf's own messages.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItemWithError, PyDict_Size
from cpython.float cimport PyFloat_AS_DOUBLE
from cpython.long cimport PyLong_AsLongLongAndOverflow
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
    # Protobuf's limit for messages.
    MAX_LENGTH = 0x7FFFFFFF


cdef struct Source:
    # The values of one key, in rows.
    const uint8_t *key
    int64_t key_length
    int kind
    const uint8_t *data  # int64, float32 or the bytes of strings, one after the other
    const int64_t *offsets  # of strings: where each begins in the data, and the last ends
    const int64_t *splits  # the same for the values of rows; NULL: so many in each row
    int64_t each
    const uint8_t *missing  # whether rows lack the key; NULL: none does


cdef inline int64_t varint_size(uint64_t value) noexcept nogil:
    return ((64 - __builtin_clzll(value | 1)) * 9 + 64) // 64


cdef inline int64_t field_size(int64_t length) noexcept nogil:
    return 1 + varint_size(length) + length


cdef inline uint8_t *put_varint(uint8_t *at, uint64_t value) noexcept nogil:
    while value >= 0x80:
        at[0] = <uint8_t>(value | 0x80)
        at += 1
        value >>= 7
    at[0] = <uint8_t>value
    return at + 1


cdef inline uint8_t *put_field(uint8_t *at, uint8_t tag, int64_t length) noexcept nogil:
    at[0] = tag
    return put_varint(at + 1, length)


cdef int64_t values_size(const Source *source, int64_t row) noexcept nogil:
    # Bytes of a row's values in their list; -1 if the row lacks the key.
    cdef int64_t begin = source.each * row, end = begin + source.each, value, size = 0
    if source.missing != NULL and source.missing[row]:
        return -1
    if source.splits != NULL:
        begin, end = source.splits[row], source.splits[row + 1]
    if source.kind == FLOAT:
        return 4 * (end - begin)
    for value in range(begin, end):
        if source.kind == INT64:
            size += varint_size((<const uint64_t *>source.data)[value])
        else:
            size += field_size(source.offsets[value + 1] - source.offsets[value])
    return size


cdef inline int64_t list_size(const Source *source, int64_t size) noexcept nogil:
    # Numbers are packed into one field.
    return size if source.kind == BYTES or size == 0 else field_size(size)


cdef inline int64_t entry_size(const Source *source, int64_t size) noexcept nogil:
    return field_size(source.key_length) + field_size(field_size(list_size(source, size)))


cdef int64_t features_size(const Source *sources, int64_t count, const int64_t *sizes) noexcept nogil:
    cdef int64_t number, total = 0
    for number in range(count):
        if sizes[number] >= 0:
            total += field_size(entry_size(&sources[number], sizes[number]))
    return total


cdef uint8_t *put_example(
    uint8_t *at, const Source *sources, int64_t count, int64_t row, const int64_t *sizes, int64_t size
) noexcept nogil:
    # By the size of the features, and those of each key's values.
    cdef const Source *source
    cdef int64_t number, length, begin, end, value
    at = put_field(at, FIELD_1, size)
    for number in range(count):
        if sizes[number] < 0:
            continue
        source = &sources[number]
        length = list_size(source, sizes[number])
        at = put_field(at, FIELD_1, entry_size(source, sizes[number]))
        at = put_field(at, FIELD_1, source.key_length)
        memcpy(at, source.key, source.key_length)
        at = put_field(at + source.key_length, FIELD_2, field_size(length))
        at = put_field(at, <uint8_t>(source.kind << 3 | 2), length)
        begin, end = source.each * row, source.each * row + source.each
        if source.splits != NULL:
            begin, end = source.splits[row], source.splits[row + 1]
        if begin == end:
            continue
        if source.kind == BYTES:
            for value in range(begin, end):
                length = source.offsets[value + 1] - source.offsets[value]
                at = put_field(at, FIELD_1, length)
                memcpy(at, source.data + source.offsets[value], length)
                at += length
            continue
        at = put_field(at, FIELD_1, sizes[number])
        if source.kind == FLOAT:
            memcpy(at, source.data + 4 * begin, 4 * (end - begin))
            at += 4 * (end - begin)
        else:
            for value in range(begin, end):
                at = put_varint(at, (<const uint64_t *>source.data)[value])
    return at


cdef inline uint8_t *put_footer(uint8_t *at, int64_t length) noexcept nogil:
    # After bytes whose checksum it is.
    cdef uint32_t checksum = crc32c_masked(at - length, length)
    memcpy(at, &checksum, 4)
    return at + 4


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
        for number, (key, _, kind, count, _) in enumerate(items):
            self.sources[number] = Source(
                <const uint8_t *>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key), KINDS.index(kind), NULL, NULL, NULL,
                count, NULL)

    def __dealloc__(self):
        free(self.sources)

    def encode(self, dict row not None):
        """The Example of a row; None where protobuf should make it, or say what is wrong."""
        cdef int64_t number, count = self.count, num_found = 0, size
        cdef Source *sources
        cdef int64_t *sizes
        cdef PyObject *found
        cdef list kept = []
        # Sources, the sizes of their values, and four numbers for each.
        cdef uint8_t *memory = <uint8_t *>malloc((count + 1) * (sizeof(Source) + 5 * sizeof(int64_t)))
        if memory == NULL:
            raise MemoryError
        sources = <Source *>memory
        sizes = <int64_t *>(sources + count + 1)
        try:
            memcpy(sources, self.sources, count * sizeof(Source))
            for number in range(count):
                found = PyDict_GetItemWithError(row, self.names[number])
                num_found += found != NULL
                value = None if found == NULL else <object>found
                if not self._take(&sources[number], sizes + count + 1 + 4 * number, number, value, kept):
                    return None
                sizes[number] = values_size(&sources[number], 0)
            size = features_size(sources, count, sizes)
            if num_found != PyDict_Size(row) or size >= MAX_LENGTH - HEADER:
                return None
            example = PyBytes_FromStringAndSize(NULL, field_size(size))
            put_example(<uint8_t *>PyBytes_AS_STRING(example), sources, count, 0, sizes, size)
            return example
        finally:
            free(memory)

    cdef bint _take(self, Source *source, int64_t *own, int64_t number, value, list kept) except -1:
        # Fill in the values of the row; False if they are not of the kind.
        cdef int64_t wanted = source.each, num_bytes = 0, place = 0
        cdef int overflow = 0
        cdef float single
        cdef bint is_single = wanted == 1 or wanted == -1
        # One row, and one value in it.
        own[0], own[1], source.splits = 0, 1, own
        source.data = <const uint8_t *>(own + 2)
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
            if is_single and source.kind == BYTES and (type(value) is bytes or type(value) is str):
                found = "bytes_list", [value if type(value) is bytes else (<str>value).encode()], ()
            else:
                found = self.encoders[number](value)
        except (TypeError, ValueError):
            return False
        if found is None:
            source.missing = <const uint8_t *>b"\1"
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


def encode_columns(list columns not None, int64_t[::1] lengths not None):
    """The records of rows, framed, one after the other.

    Args:
        columns: For each key: the key, the name of its list, values (int64, float32 or the bytes of strings), offsets of
            the strings or None, splits of the rows (int64), and which rows lack the key (uint8) or None.
        lengths: [N], receives the length of each payload.

    Raises:
        ValueError: The arrays do not fit; an Example would have 2 GiB.
    """
    cdef int64_t num_rows = lengths.shape[0], count = len(columns), number, row, num_bytes = 0, total = 0, size
    cdef list kept = []
    cdef Source *sources = <Source *>malloc((count + 1) * sizeof(Source))
    cdef int64_t *sizes = <int64_t *>malloc((count * num_rows + 1) * sizeof(int64_t))
    cdef uint8_t *at
    try:
        if sources == NULL or sizes == NULL:
            raise MemoryError
        for number, column in enumerate(in_order(columns)):
            take_column(&sources[number], column, num_rows, kept)
        with nogil:
            for number in range(count):
                for row in range(num_rows):
                    sizes[row * count + number] = values_size(&sources[number], row)
            for row in range(num_rows):
                lengths[row] = field_size(features_size(sources, count, sizes + row * count))
                if lengths[row] > MAX_LENGTH:
                    break
                total += lengths[row] + HEADER + FOOTER
            else:
                row = -1
        if row >= 0:
            raise ValueError(f"row {row}: expected an Example of less than 2 GiB, got {lengths[row]} bytes")
        records = PyBytes_FromStringAndSize(NULL, total)
        at = <uint8_t *>PyBytes_AS_STRING(records)
        with nogil:
            for row in range(num_rows):
                memcpy(at, &lengths[row], 8)
                at = put_footer(at + 8, 8)
                size = features_size(sources, count, sizes + row * count)
                at = put_example(at, sources, count, row, sizes + row * count, size)
                at = put_footer(at, lengths[row])
        return records
    finally:
        free(sources)
        free(sizes)


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
