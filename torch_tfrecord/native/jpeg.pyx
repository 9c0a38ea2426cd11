# cython: language_level=3, boundscheck=True, wraparound=False
"""Decode JPEG images, regions and crops of them with libjpeg-turbo, without the GIL."""

from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint64_t, uintptr_t
from libc.string cimport memset

from torch_tfrecord.native.jobs cimport Job

import math

import numpy as np

cdef extern from "jpeg_region.h" nogil:
    ctypedef struct ImageHeader:
        unsigned height, width
        int is_upright
    int REGION_READ
    int region_read(const unsigned char *data, size_t size, unsigned image_height, unsigned image_width, unsigned top,
                    unsigned left, unsigned height, unsigned width, int channels, unsigned char *out, char *problem)
    bint image_is_plain(const unsigned char *data, size_t size, ImageHeader *header)
    bint image_is_for_device(const unsigned char *data, size_t size, const ImageHeader *header)

cdef extern from "crops.h" nogil:
    int CROP_GIVEN
    int CROP_RANDOM
    int CROP_CENTRE
    size_t BEHIND
    int64_t MOST_SIDE
    ctypedef struct CropPlan:
        int64_t top, left, height, width, resized_height, resized_width, window_top, window_left, across, down
    ctypedef struct CropSpec:
        int kind, is_bicubic, resizes, ignores_exif
        int64_t height, width, channels, max_pixels
        uint64_t seed
        double scale[2]
        double ratio[2]
        double log_ratio[2]
        double flip
        int64_t resize[2]
    ctypedef struct Room:
        pass
    ctypedef struct CropMemory:
        Room pixels
    int crop_plan(const CropSpec *spec, int64_t height, int64_t width, uint64_t key, const CropPlan *given,
                  CropPlan *plan)
    int crop_can_resize()
    int crop_place(const CropSpec *spec, const CropPlan *plan, const unsigned char *pixels, const float *table, void *out,
                   CropMemory *memory)
    void crop_spread(const unsigned char *pixels, int64_t count, int64_t channels, unsigned char *out)
    void *room_of(Room *room, size_t size)
    void crop_memory_free(CropMemory *memory)

__all__ = ["CropJob", "plain_sizes"]


def plain_sizes(images not None, int64_t max_pixels):
    """int64 [N, 2]: the height and width of each image that a `CropJob` may read, by its first bytes and its end.

    0 for all but a JPEG image with 8 bits, 1 or 3 channels and at most `max_pixels`, whose header `read_header` accepts
    and behind whose first scan is an end marker; nothing is decoded, so it may still be rejected.
    """
    cdef tuple kept = tuple(images)  # another thread may change the list
    cdef Py_ssize_t number
    sizes = np.zeros((len(kept), 2), np.int64)
    cdef int64_t[:, ::1] found = sizes
    cdef const unsigned char[::1] view
    cdef ImageHeader header
    for number in range(len(kept)):
        view = kept[number]
        if (view.shape[0] and image_is_plain(&view[0], <size_t> view.shape[0], &header)
                and <int64_t> header.height * header.width <= max_pixels):
            found[number, 0], found[number, 1] = header.height, header.width
    return sizes


cdef struct Crops:
    CropSpec spec
    Py_ssize_t count, done, num_rows
    size_t base, size, row_bytes
    const long long *spans
    const unsigned long long *keys
    const CropPlan *plans
    CropPlan *left
    Py_ssize_t num_left
    const float *table
    const long long *rows
    unsigned char *out
    int *sizes
    char problem[256]


cdef bint crop_one(Crops *crops, Py_ssize_t number, CropMemory *memory) noexcept nogil:
    """Decode and crop one image into its row; False leaves it to Python."""
    cdef CropSpec *spec = &crops.spec
    cdef long long start = crops.spans[2 * number], length = crops.spans[2 * number + 1]
    cdef const unsigned char *data
    cdef long long place = crops.rows[number] if crops.rows else number
    cdef unsigned char *row
    cdef unsigned char *pixels
    cdef ImageHeader header
    cdef CropPlan plan
    cdef int64_t count
    cdef bint is_row
    if not 0 <= place < crops.num_rows:
        return False
    row = pixels = crops.out + <size_t> place * crops.row_bytes
    if start < 0 or length < 0 or <size_t> start > crops.size or <size_t> length > crops.size - <size_t> start:
        return False
    data = <const unsigned char *> (crops.base + <size_t> start)
    if not image_is_plain(data, <size_t> length, &header) or not (header.is_upright or spec.ignores_exif):
        return False
    if <int64_t> header.height * header.width > spec.max_pixels:
        return False
    if not crop_plan(spec, header.height, header.width, crops.keys[number] if crops.keys else 0,
                     crops.plans + number if crops.plans else NULL, &plan):
        return False
    if number < crops.num_left and image_is_for_device(data, <size_t> length, &header):
        crops.left[number] = plan
        crops.sizes[2 * number], crops.sizes[2 * number + 1] = <int> header.height, <int> header.width
        return True
    count = plan.height * plan.width
    # The region as it is: decoded into its row.
    is_row = (crops.table == NULL and plan.resized_height == plan.height == spec.height
              and plan.resized_width == plan.width == spec.width
              and not (plan.window_top or plan.window_left or plan.across or plan.down))
    if not is_row:
        pixels = <unsigned char *> room_of(&memory.pixels, <size_t> count * 4 + BEHIND)
        if pixels == NULL:
            return False
        if spec.channels == 1:
            pixels += 3 * count
    if region_read(
            data, <size_t> length, header.height, header.width, <unsigned> plan.top, <unsigned> plan.left,
            <unsigned> plan.height, <unsigned> plan.width, <int> spec.channels if is_row or spec.channels == 1 else 4,
            pixels, crops.problem) != REGION_READ:
        return False
    if not is_row:
        if spec.channels == 1:
            crop_spread(pixels, count, 1, pixels - 3 * count)
            pixels -= 3 * count
        if not crop_place(spec, &plan, pixels, crops.table, row, memory):
            return False
    crops.sizes[2 * number], crops.sizes[2 * number + 1] = <int> header.height, <int> header.width
    return True


cdef bint crop_all(void *state) noexcept nogil:
    """The job: what it cannot do is seen by `done` and `sizes`, and never keeps later jobs from running."""
    cdef Crops *crops = <Crops *> state
    cdef CropMemory memory
    cdef Py_ssize_t number
    memset(&memory, 0, sizeof(CropMemory))
    crops.done = 0
    for number in range(crops.count):
        crops.done += crop_one(crops, number, &memory)
    crop_memory_free(&memory)
    return True


cdef bint set_sizes(CropSpec *spec, tuple sizes, const unsigned char[::1] out, const float[:, ::1] table):
    """Take up (N, H, W, C) of the memory for rows; False if it, or the table, has another size."""
    spec.height, spec.width, spec.channels = sizes[1:]
    return (0 < min(sizes[1:]) and max(sizes) <= MOST_SIDE and spec.channels in (1, 3)
            and out.shape[0] == math.prod(sizes) * (1 if table is None else sizeof(float))
            and (table is None or (table.shape[0] == spec.channels and table.shape[1] == 256)))


cdef class CropJob(Job):
    """Decode and crop JPEG images, each into a row of memory.

    Args:
        buffer: The bytes that hold the images, read when the job runs; None if `images` are bytes or memoryviews.
        images: int64 [N, 2] of first byte and number of bytes in the buffer, read when the job runs; or the images.
        out: The memory, uint8 [bytes]: of uint8 [N, H, W, C], or with a table of float32 [N, C, H, W].
        sizes: (N, H, W, C); C is 1 (the stored luma) or 3 (RGB).
        table: float32 [C, 256], what to write for each value; None for uint8.
        keys: uint64 [N], for a random crop.
        plans: int64 [N, 10], the fields of CropPlan; or None for a crop that is `drawn` (seed, scale, ratio,
            horizontal_flip) or `centred` (height, width; height 0 means that width is the length of the shorter side, both
            0 that all of the image fits, with zeros around it).
        bicubic: The filter, else bilinear.
        resizes: Whether to resize here, as torch resizes uint8 with antialias.
        max_pixels: Of an image, and of what it is resized to.
        ignores_exif: Leave EXIF's orientation unapplied.
        rows: int64, the row of each image, for fewer or more images than rows.
        num_left: How many of the first images a device decodes, as far as it can: their rows stay undefined.

    Attributes:
        sizes: int32 [N, 2]: height and width of each image; 0 for one that Python has to look at: another kind or
            size, a turned or damaged one, one that must not be resized here. Its row is then undefined.
        left: int64 [num_left, 10]: the plan of each image that a device decodes, zeros for all others.
        done: How many images are done.
        problem: What libjpeg says if it is not the one that this was compiled for, or has no memory; else empty.
    """

    cdef Crops crops
    cdef object kept
    cdef readonly object sizes, left

    def __init__(self, buffer, images, unsigned char[::1] out not None, tuple sizes not None, *,
                 const float[:, ::1] table=None, const unsigned long long[::1] keys=None,
                 const long long[:, ::1] plans=None, drawn=None, centred=None, bint bicubic=False, bint resizes=False,
                 max_pixels, bint ignores_exif=True, const long long[::1] rows=None, Py_ssize_t num_left=0):
        cdef Crops *crops = &self.crops
        cdef const unsigned char[::1] view
        cdef const long long[:, ::1] spans
        cdef int[:, ::1] found
        cdef long long[:, ::1] left = np.zeros((num_left, 10), np.int64)
        cdef Py_ssize_t count = sizes[0] if rows is None else rows.shape[0]
        memset(crops, 0, sizeof(Crops))
        crops.size = <size_t> -1 >> 1
        if buffer is None:
            images = [*images]
            given = np.empty((len(images), 2), np.int64)
            for number, image in enumerate(images):
                view = image
                given[number] = <uintptr_t> &view[0] if view.shape[0] else 0, view.shape[0]
        else:
            given, view = images, buffer
            crops.base, crops.size = <uintptr_t> &view[0] if view.shape[0] else 0, <size_t> view.shape[0]
        spans, self.sizes = given, np.zeros((count, 2), np.int32)
        found = self.sizes
        if not (count and set_sizes(&crops.spec, sizes, out, table)
                and spans.shape[0] == count and spans.shape[1] == 2
                and (plans is None or (plans.shape[0] == count and plans.shape[1] == 10))
                and (drawn is None or keys.shape[0] == count)):
            raise ValueError(f"expected images, memory, keys, plans and a table for {sizes}")
        crops.count, crops.spans, crops.sizes, crops.out = count, &spans[0, 0], &found[0, 0], &out[0]
        crops.num_rows = sizes[0]
        crops.row_bytes = <size_t> (out.shape[0] // crops.num_rows)
        crops.rows = NULL if rows is None else &rows[0]
        crops.num_left = left.shape[0]
        crops.left = <CropPlan *> &left[0, 0] if left.shape[0] else NULL
        self.left = left.base
        crops.table = NULL if table is None else &table[0, 0]
        crops.spec.is_bicubic, crops.spec.ignores_exif = bicubic, ignores_exif
        crops.spec.resizes, crops.spec.max_pixels = resizes and crop_can_resize(), min(max_pixels, 1 << 62)
        if plans is not None:
            crops.plans = <const CropPlan *> &plans[0, 0]
        elif drawn is not None:
            crops.spec.kind, crops.keys = CROP_RANDOM, &keys[0]
            crops.spec.seed, scale, ratio, crops.spec.flip = drawn
            for number in range(2):
                crops.spec.scale[number], crops.spec.ratio[number] = scale[number], ratio[number]
                crops.spec.log_ratio[number] = math.log(ratio[number])
        else:
            crops.spec.kind = CROP_CENTRE
            for number in range(2):
                crops.spec.resize[number] = min(centred[number], MOST_SIDE + 1)
        self.call, self.state = crop_all, crops
        self.kept = buffer, images, given, out, table, keys, plans, rows

    @property
    def done(self):
        return self.crops.done

    @property
    def problem(self):
        return self.crops.problem.decode(errors="replace")

    def plan(self, unsigned short height, unsigned short width, key):
        """What it does with an image of this size, as a dict; None if it leaves it to Python. For tests."""
        cdef CropPlan plan
        return plan if crop_plan(&self.crops.spec, height, width, key, NULL, &plan) else None
