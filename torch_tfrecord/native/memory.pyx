# cython: boundscheck=False, wraparound=False, initializedcheck=False
"""Reusable memory, what fills columns there, and orders; the Python fallbacks are `batch_memory`, with fresh memory
each time, and beside each caller. Work of less than about 100 us keeps the GIL: beside a thread that computes in Python, a thread
that gives it away for some microseconds may wait for it for 5 ms.
"""

from cpython.buffer cimport PyBuffer_FillInfo
from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.math cimport fabsf
from libc.string cimport memcpy, memset

cdef extern from "blocks.h":
    ctypedef struct block_header:
        size_t capacity
    block_header *block_new(size_t size) nogil
    void block_give_back(block_header *block) nogil
    uint8_t *block_data(block_header *block) nogil

__all__ = ["Block", "narrow", "narrow_floats", "pad", "permute"]

cdef enum:
    LARGE_BYTES = 1 << 20

ctypedef fused bits:
    uint8_t
    uint16_t
    uint32_t
    uint64_t


cdef class Block:
    """Writable, uninitialised memory with the buffer protocol; returned for reuse when its last view is gone.

    Args:
        size: Number of bytes, at least 0.

    Raises:
        MemoryError: There is not enough memory.
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


def pad(
    const uint8_t[::1] values not None,
    const int64_t[::1] offsets not None,
    Py_ssize_t itemsize,
    const uint8_t[::1] fill not None,
    uint8_t[:, ::1] out not None,
):
    """Copy values[offsets[i] * itemsize : offsets[i + 1] * itemsize] to out[i], and pad the rest of it.

    Args:
        values: The concatenated rows.
        offsets: The row splits, in items.
        itemsize: Bytes per item, at least 0.
        fill: Repeated after each row: at least one byte; must fit a whole number of times.
        out: Receives one row for each row.

    Raises:
        ValueError: Offsets descend or leave the values, a row is too long for `out`, or `out` has too few rows.
    """
    cdef Py_ssize_t rows = out.shape[0], width = out.shape[1], period = fill.shape[0], row
    cdef int64_t begin, end
    if offsets.shape[0] != rows + 1 or period < 1 or itemsize < 0:
        raise ValueError(f"expected {rows + 1} offsets, fill and itemsize, got {offsets.shape[0]}, {period}, {itemsize}")
    for row in range(rows):
        begin, end = offsets[row], offsets[row + 1]
        if begin < 0 or begin > end or (itemsize and end > values.shape[0] // itemsize):
            raise ValueError(f"expected offsets that ascend within the values, got {begin} to {end} of row {row}")
        if (end - begin) * itemsize > width or (width - (end - begin) * itemsize) % period:
            raise ValueError(f"expected rows of at most {width} bytes and whole fills, got another one, row {row}")
    if not width:
        return
    if rows * width < LARGE_BYTES:
        pad_rows(values, offsets, itemsize, fill, out)
    else:
        with nogil:
            pad_rows(values, offsets, itemsize, fill, out)


cdef void pad_rows(
    const uint8_t[::1] values,
    const int64_t[::1] offsets,
    Py_ssize_t itemsize,
    const uint8_t[::1] fill,
    uint8_t[:, ::1] out,
) noexcept nogil:
    cdef Py_ssize_t row, length, done, width = out.shape[1], period = fill.shape[0]
    cdef uint8_t *target
    cdef uint8_t bits_set = 0
    for done in range(period):
        bits_set |= fill[done]
    for row in range(out.shape[0]):
        target = &out[row, 0]
        length = (offsets[row + 1] - offsets[row]) * itemsize
        if length:
            memcpy(target, &values[offsets[row] * itemsize], <size_t> length)
        if not bits_set:
            memset(target + length, 0, <size_t> (width - length))
        if length == width or not bits_set:
            continue
        memcpy(target + length, &fill[0], <size_t> period)
        done = period  # each copy doubles the filled part
        while length + done < width:
            memcpy(target + length + done, target + length, <size_t> min(done, width - length - done))
            done *= 2


def narrow(const int64_t[::1] values not None, bits[::1] out not None, int64_t low, int64_t high):
    """Copy integers to narrower ones: whether all are from `low` to `high`, 2**n - 1 apart.

    Raises:
        ValueError: The sizes differ.
    """
    cdef Py_ssize_t place
    # Every range is a power of two wide: then a value outside it has higher bits, and no branch is needed.
    cdef uint64_t beyond = 0, higher = ~(<uint64_t> high - <uint64_t> low)
    if out.shape[0] != values.shape[0]:
        raise ValueError(f"expected {values.shape[0]} places, got {out.shape[0]}")
    for place in range(values.shape[0]):
        beyond |= (<uint64_t> values[place] - <uint64_t> low) & higher
        out[place] = <bits> values[place]
    return beyond == 0


def narrow_floats(const float[::1] values not None, uint16_t[::1] out not None, double most):
    """Whether all floats are from -most to most or NaN; where there are places, they are rounded to bfloat16, ties to
    even, as torch does.

    Raises:
        ValueError: There are places, but not one for each.
    """
    cdef Py_ssize_t place
    cdef float limit = <float> most
    cdef uint32_t value, beyond = 0
    if out.shape[0] not in (0, values.shape[0]):
        raise ValueError(f"expected {values.shape[0]} places, got {out.shape[0]}")
    for place in range(values.shape[0]):
        beyond |= fabsf(values[place]) > limit
    for place in range(out.shape[0]):
        memcpy(&value, &values[place], sizeof(float))
        out[place] = <uint16_t> ((value + 0x7fff + (value >> 16 & 1)) >> 16 if values[place] == values[place] else 0xffff)
    return not beyond


def permute(uint64_t[::1] numbers not None, const uint64_t[::1] keys not None, int high_bits, int low_bits):
    """One pass of the Feistel network of `order.Permutation` over numbers of so many bits, in place.

    Args:
        keys: One for each round, of which there are two at a time.

    Raises:
        ValueError: A half has not 1 to 32 bits.
    """
    cdef Py_ssize_t place, number
    cdef uint64_t low, high
    if not (0 < high_bits <= 32 and 0 < low_bits <= 32):
        raise ValueError(f"expected halves of 1 to 32 bits, got {high_bits} and {low_bits}")
    for place in range(numbers.shape[0]):
        high = numbers[place] >> low_bits
        low = numbers[place] ^ high << low_bits
        for number in range(0, keys.shape[0] - 1, 2):
            high ^= scrambled(low ^ keys[number]) >> (64 - high_bits)
            low ^= scrambled(high ^ keys[number + 1]) >> (64 - low_bits)
        numbers[place] = high << low_bits | low


cdef inline uint64_t scrambled(uint64_t half) noexcept nogil:
    half *= <uint64_t> 0xFF51AFD7ED558CCD
    return (half ^ half >> 32) * <uint64_t> 0xC4CEB9FE1A85EC53
