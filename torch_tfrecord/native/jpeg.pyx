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
    int REGION_UNSUPPORTED
    int REGION_BROKEN
    int region_read(const unsigned char *data, size_t size, unsigned image_height, unsigned image_width, unsigned top,
                    unsigned left, unsigned height, unsigned width, int channels, unsigned char *out, char *problem)
    bint image_is_plain(const unsigned char *data, size_t size, ImageHeader *header)

cdef extern from "crops.h" nogil:
    int CROP_GIVEN
    int CROP_RANDOM
    int CROP_CENTRE
    size_t BEHIND
    int64_t MOST_SIDE
    ctypedef struct CropPlan:
        int64_t top, left, height, width, resized_height, resized_width, window_top, window_left, across, down
    ctypedef struct CropSpec:
        int kind, is_bicubic, resizes, is_plain, ignores_exif
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
    int crop_place(const CropSpec *spec, const CropPlan *plan, const unsigned char *pixels, int step, size_t stride,
                   const float *table, void *out, CropMemory *memory)
    void *room_of(Room *room, size_t size)
    void crop_memory_free(CropMemory *memory)

__all__ = ["CropJob", "find_plain", "place", "plan_crop", "read_images", "read_region"]
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
    cdef ImageHeader header
    for number in range(count):
        image = kept[number]
        if type(image) is bytes:
            found[number] = (image_is_plain(<bytes> image, <size_t> len(<bytes> image), &header)
                             and header.height == height and header.width == width)
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


cdef struct Crops:
    CropSpec spec
    Py_ssize_t count, done
    size_t base, size
    const long long *spans
    const unsigned long long *keys
    const CropPlan *plans
    const float *table
    unsigned char *out
    size_t row_bytes
    int *sizes


cdef bint crop_one(Crops *crops, Py_ssize_t number, CropMemory *memory) noexcept nogil:
    """Decode and crop one image into its row; False leaves it to Python."""
    cdef CropSpec *spec = &crops.spec
    cdef long long start = crops.spans[2 * number], length = crops.spans[2 * number + 1]
    cdef const unsigned char *data
    cdef unsigned char *pixels
    cdef ImageHeader header
    cdef CropPlan plan
    cdef char problem[256]
    cdef int step = <int> spec.channels
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
    if step == 3 and (plan.width != plan.resized_width):
        step = 4
    pixels = <unsigned char *> room_of(&memory.pixels, <size_t> (plan.height * plan.width * step))
    if pixels == NULL or region_read(
            data, <size_t> length, header.height, header.width, <unsigned> plan.top, <unsigned> plan.left,
            <unsigned> plan.height, <unsigned> plan.width, step, pixels, problem) != REGION_READ:
        return False
    if not crop_place(spec, &plan, pixels, step, <size_t> (plan.width * step), crops.table,
                      crops.out + <size_t> number * crops.row_bytes, memory):
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


cdef void check_spec(CropSpec *spec, Py_ssize_t height, Py_ssize_t width, Py_ssize_t channels) except *:
    if not (0 < height <= MOST_SIDE and 0 < width <= MOST_SIDE and 0 < channels <= 4):
        raise ValueError(f"expected a crop of 1 to {MOST_SIDE} pixels on each side, got {height} x {width} x {channels}")
    spec.height, spec.width, spec.channels = height, width, channels


cdef unsigned char *check_out(object out, const float[:, ::1] table, CropSpec *spec, Py_ssize_t *count) except NULL:
    """Where the rows are: uint8 [N, H, W, C], or with a table float32 [N, C, H, W]; sets N and the crop's size."""
    cdef unsigned char[:, :, :, ::1] bytes_out
    cdef float[:, :, :, ::1] floats_out
    if table is None:
        bytes_out = out
        count[0] = bytes_out.shape[0]
        check_spec(spec, bytes_out.shape[1], bytes_out.shape[2], bytes_out.shape[3])
        return &bytes_out[0, 0, 0, 0]
    floats_out = out
    count[0] = floats_out.shape[0]
    check_spec(spec, floats_out.shape[2], floats_out.shape[3], floats_out.shape[1])
    if table.shape[0] != spec.channels or table.shape[1] != 256:
        raise ValueError(f"expected a table of shape {(spec.channels, 256)}, got {(table.shape[0], table.shape[1])}")
    return <unsigned char *> &floats_out[0, 0, 0, 0]


cdef class CropJob(Job):
    """Decode and crop JPEG images, each into a row of `out`: uint8 [N, H, W, C], or with a table float32 [N, C, H, W].

    Args:
        buffer: The bytes that hold the images, read when the job runs; None if `images` are bytes or memoryviews.
        images: int64 [N, 2] of first byte and number of bytes in the buffer, read when the job runs; or the images.
        out: Memory of the rows; C is 1 (the stored luma) or 3 (RGB).
        table: float32 [C, 256], what to write for each value; None for uint8.
        keys: uint64 [N], for a random crop.
        plans: int64 [N, 10], the fields of CropPlan and whether the result is turned upside down; or None for a crop
            that is `drawn` (seed, scale, ratio, horizontal_flip) or `centred` (height, width; height 0 means that width
            is the length of the shorter side).
        bicubic: The filter, else bilinear.
        resizes: Whether to resize here, as torch resizes uint8 with antialias.
        max_pixels: Of an image, and of what it is resized to.
        ignores_exif: Leave EXIF's orientation unapplied.

    Attributes:
        sizes: int32 [N, 2]: height and width of each image; 0 for one that Python has to look at: another kind or
            size, a turned or damaged one, one that must not be resized here. Its row is then undefined.
        done: How many images are done.
    """

    cdef Crops crops
    cdef tuple kept
    cdef readonly object sizes

    def __init__(self, buffer, images, out, *, const float[:, ::1] table=None, keys=None, plans=None, tuple drawn=None,
                 tuple centred=None, bint bicubic=False, bint resizes=False, max_pixels, bint ignores_exif=True):
        cdef Crops *crops = &self.crops
        cdef const unsigned char[::1] view
        cdef const long long[:, ::1] spans
        cdef const unsigned long long[::1] keys_view
        cdef const long long[:, ::1] plans_view
        cdef int[:, ::1] sizes
        cdef Py_ssize_t count = 0
        memset(crops, 0, sizeof(Crops))
        crops.out = check_out(out, table, &crops.spec, &count)
        crops.row_bytes = <size_t> (crops.spec.height * crops.spec.width * crops.spec.channels
                                    * (1 if table is None else sizeof(float)))
        crops.size = <size_t> -1 >> 1
        crops.table = NULL if table is None else &table[0, 0]
        if crops.spec.channels not in (1, 3):
            raise ValueError(f"expected 1 or 3 channels, got {crops.spec.channels}")
        if buffer is None:
            images = tuple(images)
            given = np.empty((len(images), 2), np.int64)
            for number, image in enumerate(images):
                view = image
                given[number] = <uintptr_t> &view[0] if view.shape[0] else 0, view.shape[0]
        else:
            given, view = images, buffer
            crops.base, crops.size = <uintptr_t> &view[0] if view.shape[0] else 0, <size_t> view.shape[0]
        spans = given
        self.sizes = np.zeros((count, 2), np.int32)
        sizes = self.sizes
        if spans.shape[0] != count or spans.shape[1] != 2:
            raise ValueError(f"expected {count} images, got {spans.shape[0]}")
        crops.count, crops.spans, crops.sizes = count, &spans[0, 0], &sizes[0, 0]
        crops.spec.is_bicubic, crops.spec.resizes, crops.spec.ignores_exif = bicubic, resizes, ignores_exif
        crops.spec.max_pixels = min(max_pixels, 1 << 62)
        if plans is not None:
            plans_view = plans
            if plans_view.shape[0] != count or plans_view.shape[1] * sizeof(long long) != sizeof(CropPlan):
                raise ValueError(f"expected {count} plans of 10 numbers, got {plans.shape}")
            crops.spec.kind, crops.plans = CROP_GIVEN, <const CropPlan *> &plans_view[0, 0]
        elif drawn is not None:
            keys_view = keys
            if keys_view.shape[0] != count:
                raise ValueError(f"expected {count} keys, got {keys_view.shape[0]}")
            crops.keys = &keys_view[0]
            set_draw(&crops.spec, drawn)
        else:
            set_centre(&crops.spec, centred)
        self.call, self.state = crop_all, crops
        self.kept = buffer, images, given, out, table, keys, plans

    @property
    def done(self):
        return self.crops.done


cdef int set_draw(CropSpec *spec, tuple drawn) except -1:
    seed, scale, ratio, spec.flip = drawn
    spec.kind, spec.seed = CROP_RANDOM, seed
    for number in range(2):
        spec.scale[number], spec.ratio[number] = scale[number], ratio[number]
        spec.log_ratio[number] = math.log(ratio[number])
    return 0


cdef int set_centre(CropSpec *spec, tuple centred) except -1:
    spec.kind, spec.resize[0], spec.resize[1] = CROP_CENTRE, min(centred[0], MOST_SIDE + 1), min(centred[1], MOST_SIDE + 1)
    return 0


def plan_crop(tuple size not None, long long height, long long width, key, *, tuple drawn=None, tuple centred=None):
    """The plan of a job for an image of this size: int64 [10]; None if it leaves the image to Python. For tests."""
    cdef CropSpec spec
    cdef CropPlan plan
    memset(&spec, 0, sizeof(CropSpec))
    check_spec(&spec, size[0], size[1], 3)
    spec.resizes, spec.max_pixels = True, 1 << 62
    if not (0 < height < 1 << 16 and 0 < width < 1 << 16):
        raise ValueError(f"expected an image of 1 to 65535 pixels on each side, got {height} x {width}")
    if drawn is not None:
        set_draw(&spec, drawn)
    else:
        set_centre(&spec, centred)
    if not crop_plan(&spec, height, width, key, NULL, &plan):
        return None
    return np.asarray(<long long[:10]> <long long *> &plan).copy()


def place(
    const unsigned char[:, :, ::1] pixels not None,
    plan not None,
    out not None,
    *,
    const float[:, ::1] table=None,
    bint bicubic=False,
    bint plain=False,
):
    """Resize pixels [height, width, channels] by a plan whose region is all of them, and write its window to `out`:
    uint8 [1, H, W, C], or with a table float32 [1, C, H, W]. Releases the GIL.

    The pixels have C channels, or 4 for 3: the fourth is then ignored. `plain` is without vector instructions.

    Raises:
        ValueError: The shapes or the plan do not fit.
    """
    cdef CropSpec spec
    cdef CropPlan given, checked
    cdef CropMemory memory
    cdef Py_ssize_t count = 0, step = pixels.shape[2]
    cdef unsigned char *target
    cdef const float *values = NULL if table is None else &table[0, 0]
    cdef bint is_placed
    memset(&spec, 0, sizeof(CropSpec))
    memset(&memory, 0, sizeof(CropMemory))
    target = check_out(out, table, &spec, &count)
    spec.resizes, spec.is_bicubic, spec.is_plain, spec.max_pixels = True, bicubic, plain, 1 << 62
    (given.top, given.left, given.height, given.width, given.resized_height, given.resized_width, given.window_top,
     given.window_left, given.across, given.down) = plan
    if (not (step == spec.channels or (step == 4 and spec.channels == 3)) or given.height != pixels.shape[0]
            or given.width != pixels.shape[1] or max(given.height, given.width) > MOST_SIDE
            or not crop_plan(&spec, given.height, given.width, 0, &given, &checked)):
        raise ValueError(
            f"expected out for {tuple(plan)} of {(pixels.shape[0], pixels.shape[1], step)}, got "
            f"{(spec.height, spec.width, spec.channels)}"
        )
    with nogil:
        is_placed = crop_place(&spec, &checked, &pixels[0, 0, 0], <int> step, <size_t> (checked.width * step), values,
                               target, &memory)
        crop_memory_free(&memory)
    if not is_placed:
        raise MemoryError
