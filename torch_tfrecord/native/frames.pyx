# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Loops over frames and checksums of TFRecord files, and batch reads from them.

The Python fallbacks are in `framing`, `local_file`, `packed_records`, `reader`, `record_table`.

Nothing in the bytes is trusted: a length is checked against what is left of the buffer before it is used, in a way that
cannot overflow. These functions raise no format errors: they return where they stopped, and Python raises the error.

Lists from callers may change during a call, by another thread without the GIL, or by the `__index__` of their own
items: they are copied to tuples, or read in a critical section that runs no Python code. Likewise, array elements that
are used twice are copied first, and the copies are checked.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE, PyList_New, PyList_SET_ITEM
from cpython.long cimport PyLong_AsLongLongAndOverflow
from cpython.ref cimport Py_INCREF
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from posix.fcntl cimport O_CLOEXEC, O_RDONLY, open

from torch_tfrecord.native.jobs cimport Job

cdef extern from "crc32c.h":
    const char *crc32c_name
    void crc32c_init()
    uint32_t crc32c_extend(uint32_t crc, const uint8_t *data, size_t size) noexcept nogil
    uint32_t crc32c_masked(const uint8_t *data, size_t size) noexcept nogil
    uint64_t load_le64(const uint8_t *data) noexcept nogil
    uint32_t load_le32(const uint8_t *data) noexcept nogil

cdef extern from "<string.h>":
    void *memmove(void *to, const void *origin, size_t size) noexcept nogil
    void *memset(void *to, int byte, size_t size) noexcept nogil

cdef extern from "<sys/types.h>":
    ctypedef long off_t

cdef extern from "<unistd.h>":
    int close(int fd) noexcept nogil
    int dup(int fd) noexcept nogil
    ssize_t pread(int fd, void *buffer, size_t size, off_t offset) noexcept nogil

cdef extern from "<sys/uio.h>":
    struct iovec:
        void *iov_base
        size_t iov_len
    ssize_t preadv(int fd, const iovec *parts, int count, off_t offset) noexcept nogil

__all__ = ["MOST_SOURCES", "ReadJob", "checksum_by", "copy", "crc32c", "find", "headers", "integers", "plan_reads",
           "read_file", "read_record", "slices", "walk"]

crc32c_init()
checksum_by = crc32c_name.decode()

MOST_SOURCES = _MOST_SOURCES

cdef enum:
    _HEADER = 12
    _OVERHEAD = 16
    _FOOTER = 4
    _LENGTH = 8
    _CHUNK = 1 << 18  # fits into the L2 cache, with room to spare
    _PAGE = 1 << 12
    _MOST_SOURCES = 64
    _SMALL = 1 << 14  # below, releasing the GIL costs more than the work

    # Of the files of one plan: at most 2^18, of at most 8 TiB.
    _FILE_BITS = 18
    _OFFSET_BITS = 43

cdef int64_t _FAR = 1LL << 61  # past the end of any file; three such numbers can be added


cdef inline bint _is_header(const uint8_t *at) noexcept nogil:
    return crc32c_masked(at, _LENGTH) == load_le32(at + _LENGTH)


cdef inline bint _is_payload(const uint8_t *payload, size_t length) noexcept nogil:
    return crc32c_masked(payload, length) == load_le32(payload + length)


def crc32c(const uint8_t[::1] data, uint32_t value=0):
    """CRC-32C of bytes, continuing from the CRC-32C of the bytes before."""
    cdef size_t size = data.shape[0]
    if size < _SMALL:
        return crc32c_extend(value, &data[0], size)
    with nogil:
        value = crc32c_extend(value, &data[0], size)
    return value


def walk(const uint8_t[::1] buffer, int64_t[:, ::1] found, bint verify):
    """Find the complete records at the start of a buffer, as many as there is room for in `found`, as for a `ReadJob`.

    Returns the number found, and their total bytes.
    """
    cdef Reading reading
    if found.shape[0] != 2 or not found.shape[1]:
        return 0, 0
    memset(&reading, 0, sizeof(reading))
    reading.data, reading.verify = <uint8_t *>&buffer[0], verify
    reading.found, reading.most = &found[0, 0], found.shape[1]
    with nogil:
        find_records(&reading, buffer.shape[0])
    return reading.num_found, reading.used


def headers(const uint8_t[::1] buffer):
    """The places of valid headers in a buffer, ascending, of lengths below 2^48: no file is longer."""
    cdef const uint8_t *data = &buffer[0]
    cdef Py_ssize_t at = 0, end = buffer.shape[0] - _HEADER
    cdef list found = []
    while True:
        with nogil:
            while at <= end and (data[at + 6] or data[at + 7] or not _is_header(data + at)):
                at += 1
        if at > end:
            return found
        found.append(at)
        at += 1


cdef inline bint _is_record(const uint8_t *data, int64_t size, int64_t at, int64_t length, bint verify) noexcept nogil:
    # Whether a good record of that length starts there, in a buffer of that size.
    return (0 <= at <= size and length >= 0 and size - at >= _OVERHEAD and length <= size - at - _OVERHEAD
            and load_le64(data + at) == <uint64_t>length and _is_header(data + at)
            and (not verify or _is_payload(data + at + _HEADER, length)))


def slices(const uint8_t[::1] buffer, const int64_t[:] starts, const int64_t[:] lengths):
    """Copy parts of a buffer; raises ValueError if a part is not inside it."""
    cdef const char *data = <const char *>&buffer[0]
    cdef Py_ssize_t number, count = starts.shape[0]
    cdef int64_t size = buffer.shape[0], start, length
    if lengths.shape[0] != count:
        raise ValueError(f"expected as many starts as lengths, got {count} and {lengths.shape[0]}")
    parts = PyList_New(count)
    for number in range(count):
        start, length = starts[number], lengths[number]
        if start < 0 or length < 0 or length > size - start:
            raise ValueError(f"expected parts of a buffer of {size} bytes, got {length} bytes from {start}")
        part = PyBytes_FromStringAndSize(data + start, length)
        Py_INCREF(part)  # the list takes one over
        PyList_SET_ITEM(parts, number, part)
    return parts


def copy(const uint8_t[::1] source, int64_t begin, const int64_t[:, :] ranges, uint8_t[::1] target):
    """Copy ranges of a stream, which the source is from a byte on: first byte, size and place in the target of each;
    False where one is not inside, or empty.
    """
    cdef Py_ssize_t number
    cdef int64_t start, size, place
    if begin < 0 or ranges.shape[0] != 3:
        return False
    for number in range(ranges.shape[1]):
        start, size, place = ranges[0, number], ranges[1, number], ranges[2, number]
        if (start < begin or size < 1 or place < 0 or size > source.shape[0] - (start - begin)
                or size > target.shape[0] - place):
            return False
        memmove(&target[place], &source[start - begin], size)
    return True


def integers(numbers, int64_t limit, int64_t[::1] out):
    """Copy a list of int, each from 0 to below the limit, to an array of the same size; False if in doubt."""
    cdef Py_ssize_t number, count = out.shape[0]
    cdef int64_t value
    cdef int overflow = 0
    if not isinstance(numbers, list):
        return False
    with cython.critical_section(numbers):
        if PyList_GET_SIZE(numbers) != count:
            return False
        for number in range(count):
            item = <object>PyList_GET_ITEM(numbers, number)
            if type(item) is not int:
                return False
            value = PyLong_AsLongLongAndOverflow(item, &overflow)
            if overflow or value < 0 or value >= limit:
                return False
            out[number] = value
    return True


def find(const int64_t[::1] positions, const int64_t[::1] ends, const int64_t[::1] borders, int64_t[:, ::1] places):
    """Find records by their positions; the Python fallback is `RecordTable.find`.

    Args:
        positions: [N].
        ends: [F]: the number of records up to the end of each file.
        borders: [records + F]: for each file, the offsets of its records, then the offset of its end.
        places: [3, N], receives file number, offset and payload length.

    Returns:
        False if a position is out of range.
    """
    cdef Py_ssize_t number, count = positions.shape[0], num_files = ends.shape[0], low, high, middle, file = 0
    cdef int64_t position, begin = 0, end = ends[0] if num_files else 0
    if (places.shape[0] != 3 or places.shape[1] != count
            or borders.shape[0] != num_files + (ends[num_files - 1] if num_files else 0)):
        raise ValueError("the shapes of places, borders and ends do not fit")
    for number in range(count):
        position = positions[number]
        if position < begin or position >= end:  # in another file than the record before
            low, high = 0, num_files
            while low < high:
                middle = (low + high) // 2
                if ends[middle] <= position:
                    low = middle + 1
                else:
                    high = middle
            file = low
            if position < 0 or file == num_files or position + file + 1 >= borders.shape[0]:
                break
            begin, end = ends[file - 1] if file else 0, ends[file]
        places[0, number] = file
        places[1, number] = borders[position + file]
        places[2, number] = borders[position + file + 1] - borders[position + file] - _OVERHEAD
    else:
        number = count
    return number == count


cdef struct Piece:
    uint64_t place  # number of the file, and offset in it
    int64_t record


cdef Piece *sort_pieces(Piece *pieces, Piece *spare, int64_t count) noexcept nogil:
    # By the lowest byte of their places, then the next; what is the same in all takes no pass. Returns one of the two.
    cdef uint64_t differing = 0
    cdef int64_t begins[256]
    cdef int64_t number, total
    cdef int shift, digit
    for number in range(1, count):
        differing |= pieces[number].place ^ pieces[0].place
    for shift in range(0, 64, 8):
        if (differing >> shift) & 0xFF == 0:
            continue
        memset(begins, 0, sizeof(begins))
        for number in range(count):
            begins[(pieces[number].place >> shift) & 0xFF] += 1
        total = 0
        for digit in range(256):
            total += begins[digit]
            begins[digit] = total - begins[digit]
        for number in range(count):
            digit = (pieces[number].place >> shift) & 0xFF
            spare[begins[digit]] = pieces[number]
            begins[digit] += 1
        pieces, spare = spare, pieces
    return pieces


def plan_reads(
    const int64_t[:] files, const int64_t[:] offsets, const int64_t[:] lengths, int64_t header, int64_t footer,
    int64_t max_gap, int64_t window, int64_t[:, ::1] ranges, int64_t[::1] places,
):
    """Sort pieces of files by file and offset, and merge neighbours, so that few calls read them all.

    Args:
        files, offsets, lengths: [N], of the pieces.
        header, footer: Bytes before and after each piece that are read with it, from its offset on.
        max_gap: Pieces with at most so many bytes between them become one range; the gap is read, too.
        window: Only pieces that start in the same window of so many bytes (aligned to a multiple of it) are merged, which
            limits a range to this size plus one piece.
        ranges: [4, N], receives for each range the number of its file among those read, first byte, size, and its
            start in the buffer.
        places: [N], receives the start of each piece in the buffer.

    Returns:
        The number of ranges, their total bytes, and the numbers of the files; None if a number is out of range.
    """
    cdef int64_t count = files.shape[0], number, record, last = -1, length
    cdef int64_t file = -1, begin, end, end_before = 0, before = 0, total = 0
    cdef bint is_sorted = True, joins
    cdef list distinct = []
    cdef Piece *memory
    cdef Piece *pieces
    if (offsets.shape[0] != count or lengths.shape[0] != count or places.shape[0] != count or ranges.shape[0] != 4
            or ranges.shape[1] != count or window <= 0):
        raise ValueError("the shapes of the records' arrays do not fit")
    memory = pieces = <Piece *>malloc(2 * max(count, 1) * sizeof(Piece))
    if memory == NULL:
        raise MemoryError
    try:
        for number in range(count):
            file, begin = files[number], offsets[number]
            if file < 0 or file >> _FILE_BITS or begin < 0 or begin >> _OFFSET_BITS:
                return None
            pieces[number].place, pieces[number].record = file << _OFFSET_BITS | begin, number
            is_sorted &= number == 0 or pieces[number - 1].place <= pieces[number].place
        if not is_sorted:
            pieces = sort_pieces(memory, memory + count, count)
        file = -1
        for number in range(count):
            record, begin = pieces[number].record, pieces[number].place & ((1LL << _OFFSET_BITS) - 1)
            length = lengths[record]
            if length < 0 or length > _FAR:
                return None
            end = begin + header + length + footer
            joins = <int64_t>(pieces[number].place >> _OFFSET_BITS) == file
            if joins:
                joins = begin - end_before <= max_gap and begin // window == before // window
            else:
                file = pieces[number].place >> _OFFSET_BITS
                distinct.append(file)
            before, end_before = begin, end
            if joins:
                ranges[2, last] = max(ranges[2, last], end - ranges[1, last])
            else:
                if last >= 0:
                    total += ranges[2, last]
                if total > _FAR:
                    return None
                last += 1
                ranges[0, last], ranges[1, last], ranges[3, last] = len(distinct) - 1, begin, total
                ranges[2, last] = end - begin
            places[record] = total + begin - ranges[1, last] + header
    finally:
        free(memory)
    return last + 1, total + (ranges[2, last] if last >= 0 else 0), distinct


cdef struct Reading:
    int descriptors[_MOST_SOURCES]
    int64_t file_sizes[_MOST_SOURCES]
    int64_t num_sources
    int64_t first_source
    const int64_t *ranges
    int64_t width  # of a row of ranges
    int64_t first
    int64_t last
    uint8_t *data
    int64_t size
    const int64_t *places
    const int64_t *lengths
    int64_t count
    bint verify
    int64_t *found
    int64_t most
    int64_t num_found
    int64_t used  # of the buffer, by records that were found
    int64_t passed  # before the buffer


cdef class ReadJob(Job):
    """Reads some ranges of a plan into a buffer, then checks records in it; in doubt when a read is short or a record bad.
    Or finds the records of one range, whose file it keeps open by itself; in doubt where it finds none. If the buffer is
    smaller than the range, it is used again and again.

    Args:
        sources: Descriptor and size of up to MOST_SOURCES files, and what keeps each open; the first has number
            `first_source`.
        ranges: From `plan_reads`; those from `first` to below `last` are read.
        buffer: Receives them.
        places: [N]: start of each payload to check in the buffer.
        lengths: [N or more]: payload lengths.
        verify: Also check the payload checksums.
        found: [2, M], or None: receives the start of each payload in the range, and its length, of the records from its
            first byte on. After them comes the end, a bad record, or one that is not whole, unless all M are
            found.

    Attributes:
        num_found: How many of these.
    """

    cdef Reading reading
    cdef tuple kept
    cdef const int64_t[:, ::1] ranges
    cdef uint8_t[::1] buffer
    cdef const int64_t[::1] places
    cdef const int64_t[::1] lengths
    cdef int64_t[:, ::1] found

    def __init__(
        self, list sources, int64_t first_source, const int64_t[:, ::1] ranges not None, int64_t first, int64_t last,
        uint8_t[::1] buffer not None, const int64_t[::1] places not None, const int64_t[::1] lengths not None, bint verify,
        int64_t[:, ::1] found=None,
    ):
        cdef Reading *reading = &self.reading
        self.call = NULL
        self.kept = tuple(sources)
        self.ranges, self.buffer, self.places, self.lengths = ranges, buffer, places, lengths
        reading.num_sources, reading.first_source = len(self.kept), first_source
        reading.first, reading.last, reading.width, reading.verify = first, last, ranges.shape[1], verify
        reading.size, reading.count = buffer.shape[0], places.shape[0]
        if (ranges.shape[0] != 4 or first < 0 or ranges.shape[1] < last or reading.num_sources > _MOST_SOURCES
                or lengths.shape[0] < reading.count):
            raise ValueError("the shapes of the plan's arrays do not fit")
        for number in range(reading.num_sources):
            reading.descriptors[number], reading.file_sizes[number] = self.kept[number][:2]
        reading.ranges = &ranges[0, 0] if last else NULL
        reading.data = &buffer[0] if reading.size else NULL
        if reading.count:
            reading.places, reading.lengths = &places[0], &lengths[0]
        if found is not None and found.shape[0] == 2 and found.shape[1] and reading.num_sources == 1 and reading.found == NULL:
            self.found, reading.found, reading.most = found, &found[0, 0], found.shape[1]
            reading.descriptors[0] = dup(reading.descriptors[0])
        self.call, self.state = read_ranges, reading

    @property
    def num_found(self):
        return self.reading.num_found

    def __dealloc__(self):
        if self.reading.found != NULL:
            close(self.reading.descriptors[0])


cdef bint read_ranges(void *state) noexcept nogil:
    cdef Reading *plan = <Reading *>state
    cdef int64_t number, source, begin, length, start, step, width = plan.width, checked = 0
    cdef bint recycles
    for number in range(plan.first, plan.last):
        source, begin = plan.ranges[number] - plan.first_source, plan.ranges[width + number]
        length, start = plan.ranges[2 * width + number], plan.ranges[3 * width + number]
        if not (0 <= source < plan.num_sources and begin >= 0 and 0 <= length <= plan.file_sizes[source] - begin
                and 0 <= start <= plan.size and (length <= plan.size - start or plan.found != NULL)):
            return False
        recycles = length > plan.size
        while length:
            step = min(min(length, plan.size if recycles else _CHUNK), plan.size - start)
            if pread(plan.descriptors[source], plan.data + start, step, begin) != step:
                return False
            begin, start, length = begin + step, start + step, length - step
            if plan.found != NULL and (not step or not find_records(plan, start)):
                return plan.num_found > 0
            if recycles:
                start -= plan.used
                memmove(plan.data, plan.data + plan.used, start)
                plan.passed += plan.used
                plan.used = 0
            # Check while the data is in the cache; records that are not in file order are checked later.
            while checked < plan.count and plan.places[checked] <= start - plan.lengths[checked] - _FOOTER:
                if not is_planned(plan, checked, start):
                    return False
                checked += 1
    while checked < plan.count:
        if not is_planned(plan, checked, plan.size):
            return False
        checked += 1
    return plan.found == NULL or plan.num_found > 0


cdef bint find_records(Reading *plan, int64_t end) noexcept nogil:
    # In what was read; False at a bad one, or where no more are wanted.
    cdef const uint8_t *record
    cdef const uint8_t *data = plan.data
    cdef int64_t *starts = plan.found
    cdef int64_t *lengths = starts + plan.most
    cdef int64_t length, used = plan.used, number = plan.num_found, most = plan.most, begin = plan.passed + _HEADER
    cdef bint good = True, verify = plan.verify
    while number < most and end - used >= _OVERHEAD:
        record = data + used
        length = <int64_t>load_le64(record)
        good = _is_header(record) and length >= 0
        if not good or length > end - used - _OVERHEAD:
            break
        good = not verify or _is_payload(record + _HEADER, length)
        if not good:
            break
        starts[number], lengths[number] = begin + used, length
        number += 1
        used += length + _OVERHEAD
    plan.used, plan.num_found = used, number
    return good and number < most


cdef inline bint is_planned(const Reading *plan, int64_t number, int64_t size) noexcept nogil:
    return _is_record(plan.data, size, plan.places[number] - _HEADER, plan.lengths[number], plan.verify)


def read_file(const char *path, int64_t offset, uint8_t[::1] target):
    """Fill the target, which is not empty, with the bytes of a file from an offset on; False where they do not all come.
    The file is opened, read and closed without the GIL, which a thread would wait for each time.
    """
    cdef Py_ssize_t size = target.shape[0], got
    cdef int fd
    with nogil:
        fd = open(path, O_RDONLY | O_CLOEXEC)
        got = pread(fd, &target[0], size, offset)
        close(fd)
    return got == size


def read_record(int fd, int64_t offset, int64_t length, bint verify):
    """The payload of the record at an offset, which must have `length` bytes; None if in doubt."""
    cdef uint8_t small[_SMALL]
    cdef uint8_t *header = small
    cdef uint8_t *footer = small + _HEADER
    cdef iovec parts[3]
    cdef bint good
    cdef char *data
    if length < 0 or offset < 0:
        return None
    if length <= _SMALL - _OVERHEAD:  # copying costs less than reading three parts
        with nogil:
            good = (pread(fd, small, length + _OVERHEAD, offset) == length + _OVERHEAD
                    and _is_record(small, length + _OVERHEAD, 0, length, verify))
        return PyBytes_FromStringAndSize(<const char *>small + _HEADER, length) if good else None
    payload = PyBytes_FromStringAndSize(NULL, length)
    data = PyBytes_AS_STRING(payload)
    parts[0].iov_base, parts[0].iov_len = header, _HEADER
    parts[1].iov_base, parts[1].iov_len = data, length
    parts[2].iov_base, parts[2].iov_len = footer, _FOOTER
    with nogil:
        good = (preadv(fd, parts, 3, offset) == length + _OVERHEAD
                and load_le64(header) == <uint64_t>length and _is_header(header)
                and (not verify or crc32c_masked(<const uint8_t *>data, length) == load_le32(footer)))
    return payload if good else None
