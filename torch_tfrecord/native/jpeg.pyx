# cython: language_level=3, boundscheck=True, wraparound=False
"""Decode JPEG images and regions of them with libjpeg-turbo, without the GIL."""

from libc.stddef cimport size_t

import numpy as np

cdef extern from "jpeg_region.h" nogil:
    int REGION_READ
    int REGION_UNSUPPORTED
    int REGION_BROKEN
    int region_read(const unsigned char *data, size_t size, unsigned image_height, unsigned image_width, unsigned top,
                    unsigned left, unsigned height, unsigned width, int channels, unsigned char *out, char *problem)
    bint image_is_plain(const unsigned char *data, size_t size, unsigned height, unsigned width)

__all__ = ["find_plain", "read_images", "read_region"]


def read_region(
    const unsigned char[::1] data not None,
    unsigned image_height,
    unsigned image_width,
    unsigned top,
    unsigned left,
    unsigned char[:, :, ::1] out not None,
):
    """Decode the region from (top, left) of a JPEG image of the given size into out [height, width, C].

    C is 1 (the stored luma) or 3 (RGB). Returns True, or False for a kind that cannot be decoded by region.

    Raises:
        ValueError: The region is empty or outside the image, C is invalid, or the data is truncated or damaged.
        RuntimeError: libjpeg is not the one that this was compiled for, or has no memory.
    """
    cdef unsigned height = <unsigned> out.shape[0], width = <unsigned> out.shape[1]
    cdef int status, channels = <int> out.shape[2]
    cdef char problem[256]
    if not (0 < out.shape[0] <= image_height and 0 < out.shape[1] <= image_width and top <= image_height - height
            and left <= image_width - width):
        raise ValueError(
            f"expected a region inside {image_height} x {image_width} pixels, got {out.shape[0]} x {out.shape[1]} "
            f"at ({top}, {left})"
        )
    if out.shape[2] not in (1, 3):
        raise ValueError(f"expected 1 or 3 channels, got {out.shape[2]}")
    if data.shape[0] == 0:
        raise ValueError("expected a JPEG image, got 0 bytes")
    with nogil:
        status = region_read(&data[0], <size_t> data.shape[0], image_height, image_width, top, left, height, width,
                             channels, &out[0, 0, 0], problem)
    if status == REGION_BROKEN:
        raise RuntimeError(problem.decode(errors="replace"))
    if status == REGION_READ:
        return True
    if status == REGION_UNSUPPORTED:
        return False
    raise ValueError("the data are cut or damaged, or of another size than their header says")


def find_plain(list images not None, unsigned height, unsigned width):
    """Whether each image, by its first bytes and its end, is one that `read_images` may read at this size.

    True only for bytes of a JPEG image with 8 bits, 1 or 3 channels and this size, whose header `read_header` accepts
    and for which `has_end_marker` is True; nothing is decoded, so `read_images` may still reject it.
    """
    cdef tuple kept = tuple(images)  # another thread may change the list
    cdef Py_ssize_t number, count = len(kept)
    found_array = np.zeros(count, np.bool_)
    cdef unsigned char[::1] found = found_array.view(np.uint8)
    for number in range(count):
        image = kept[number]
        if type(image) is bytes:
            found[number] = image_is_plain(<bytes> image, <size_t> len(<bytes> image), height, width)
    return found_array


def read_images(list images not None, const long long[::1] rows not None, unsigned char[:, :, :, ::1] out not None):
    """Decode whole JPEG images of equal size, each into a row of out [N, height, width, C].

    Releases the GIL. `images` are bytes, `rows` are the row numbers; C is 1 (the stored
    luma) or 3 (RGB).

    Returns:
        True for each decoded image; False if it is of an unsupported kind, damaged, or of another size: its row is
        then undefined.

    Raises:
        ValueError: The numbers of images, rows and sizes do not match.
        TypeError: An image is not bytes.
        RuntimeError: See `read_region`.
    """
    cdef tuple kept = tuple(images)  # keeps their memory alive during the call
    cdef Py_ssize_t number = 0, count = len(kept)
    cdef unsigned height = <unsigned> out.shape[1], width = <unsigned> out.shape[2]
    cdef int channels = <int> out.shape[3]
    cdef bytes image
    cdef char problem[256]
    starts_array, sizes_array = np.empty(count, np.uintp), np.empty(count, np.uintp)
    statuses_array = np.empty(count, np.int8)
    cdef size_t[::1] starts = starts_array, sizes = sizes_array
    cdef signed char[::1] statuses = statuses_array
    if rows.shape[0] != count or out.shape[3] not in (1, 3) or out.shape[1] < 1 or out.shape[2] < 1:
        raise ValueError(
            f"expected a row for each of {count} images and 1 or 3 channels, got {rows.shape[0]} rows and memory of "
            f"{out.shape[1]} x {out.shape[2]} x {out.shape[3]}"
        )
    for number in range(count):
        image = kept[number]
        if image is None or not 0 <= rows[number] < out.shape[0]:
            raise ValueError(f"expected bytes for a row of {out.shape[0]}, got row {rows[number]} for image {number}")
        starts[number], sizes[number] = <size_t> <const unsigned char *> image, <size_t> len(image)
    with nogil:
        for number in range(count):
            statuses[number] = <signed char> region_read(
                <const unsigned char *> starts[number], sizes[number], height, width, 0, 0, height, width, channels,
                &out[rows[number], 0, 0, 0], problem)
            if statuses[number] == REGION_BROKEN:
                break
    if count and statuses[number] == REGION_BROKEN:
        raise RuntimeError(problem.decode(errors="replace"))
    return statuses_array == REGION_READ
