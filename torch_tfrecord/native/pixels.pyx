# cython: language_level=3, boundscheck=False, wraparound=False
"""Copy the pixels of one image to its place in a batch, in one pass, without the GIL or torch's threads."""

from libc.string cimport memcpy

__all__ = ["place", "place_normalized"]


def _shape(array):
    return tuple(memoryview(array).shape)


def place(const unsigned char[:, :, ::1] pixels not None, bint flip, unsigned char[:, :, ::1] out not None):
    """Copy pixels [H, W, C], mirrored if `flip`, to out [H, W, C].

    Raises:
        ValueError: The shapes differ.
    """
    cdef Py_ssize_t height = pixels.shape[0], width = pixels.shape[1], channels = pixels.shape[2], y, x, c
    cdef const unsigned char *source
    cdef unsigned char *target
    if out.shape[0] != height or out.shape[1] != width or out.shape[2] != channels:
        raise ValueError(f"expected out of shape {(height, width, channels)}, got {_shape(out)}")
    with nogil:
        for y in range(height):
            source, target = &pixels[y, 0, 0], &out[y, 0, 0]
            if not flip:
                memcpy(target, source, <size_t> (width * channels))
                continue
            source += (width - 1) * channels
            if channels == 3:  # unrolled
                for x in range(width):
                    target[0], target[1], target[2] = source[0], source[1], source[2]
                    target, source = target + 3, source - 3
                continue
            for x in range(width):
                for c in range(channels):
                    target[x * channels + c] = source[c - x * channels]


def place_normalized(
    const unsigned char[:, :, ::1] pixels not None,
    bint flip,
    const float[:, ::1] table not None,
    float[:, :, ::1] out not None,
):
    """Write table[c, value] for each pixel [H, W, C], mirrored if `flip`, to out [C, H, W].

    Raises:
        ValueError: The shapes differ, or the table is not [C, 256].
    """
    cdef Py_ssize_t height = pixels.shape[0], width = pixels.shape[1], channels = pixels.shape[2], y, x, c, step
    cdef const unsigned char *source
    cdef const float *values
    cdef float *target
    if out.shape[0] != channels or out.shape[1] != height or out.shape[2] != width:
        raise ValueError(f"expected out of shape {(channels, height, width)}, got {_shape(out)}")
    if table.shape[0] != channels or table.shape[1] != 256:
        raise ValueError(f"expected a table of shape {(channels, 256)}, got {_shape(table)}")
    step = -channels if flip else channels
    with nogil:
        for y in range(height):
            for c in range(channels):
                source = &pixels[y, width - 1 if flip else 0, c]
                values, target = &table[c, 0], &out[c, y, 0]
                for x in range(width):
                    target[x] = values[source[x * step]]
