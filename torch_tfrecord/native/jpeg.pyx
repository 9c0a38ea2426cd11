# cython: language_level=3, boundscheck=True, wraparound=False
"""Regions of JPEG images, decoded by the system's libjpeg-turbo without the interpreter's lock."""

from libc.stddef cimport size_t

cdef extern from "jpeg_region.h" nogil:
    int REGION_READ
    int REGION_UNSUPPORTED
    int region_read(const unsigned char *data, size_t size, unsigned image_height, unsigned image_width, unsigned top,
                    unsigned left, unsigned height, unsigned width, int channels, unsigned char *out)

__all__ = ["read_region"]


def read_region(
    const unsigned char[::1] data not None,
    unsigned image_height,
    unsigned image_width,
    unsigned top,
    unsigned left,
    unsigned char[:, :, ::1] out not None,
):
    """Decode the region from (top, left) of a JPEG image of the given size into out [height, width, C].

    C is 1 (the stored luma) or 3 (RGB). Returns True, or False for a kind that is not read by regions.

    Raises:
        ValueError: The region is empty or reaches out of the image, C is another, or the data are cut or damaged.
    """
    cdef unsigned height = <unsigned> out.shape[0], width = <unsigned> out.shape[1]
    cdef int status, channels = <int> out.shape[2]
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
                             channels, &out[0, 0, 0])
    if status == REGION_READ:
        return True
    if status == REGION_UNSUPPORTED:
        return False
    raise ValueError("the data are cut or damaged, or of another size than their header says")
