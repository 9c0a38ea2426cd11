/* From decoded pixels to a row of a batch: what is cut out, the resize, the flips, the table of values.

   The resize has torch's rules for uint8 (aten/src/ATen/native/cpu/UpSampleKernel.cpp, after Pillow): weights in double,
   normalised, then int16 with one precision for each axis; columns first, to uint8, then rows; an axis that keeps its
   size is left alone. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* What to do with one image; as int64 [10] also Python's. */
typedef struct {
    int64_t top, left, height, width; /* cut out */
    int64_t resized_height, resized_width;
    int64_t window_top, window_left; /* of the result in the resized region, or around it: then not above 0 */
    int64_t across, down;            /* mirrored */
} CropPlan;

enum { CROP_GIVEN = 0, CROP_RANDOM = 1, CROP_CENTRE = 2 };

typedef struct {
    int kind;
    int is_bicubic, resizes; /* whether it may be resized here: only if crop_can_resize */
    int ignores_exif;        /* leaves images unturned */
    int64_t height, width, channels; /* of the result; 1 or 3 channels */
    int64_t max_pixels;
    uint64_t seed;
    double scale[2], ratio[2], log_ratio[2], flip;
    int64_t resize[2]; /* height and width; height 0: width is the length of the shorter side; both 0: what fits */
} CropSpec;

/* Longer sides are left to Python: so the product of two sides and 4 bytes fits int64 and size_t. */
#define MOST_SIDE (1 << 30)
/* Vectors read and write less than so many bytes behind a row. */
#define BEHIND 32

/* The draw: order/random_stream.py and images/crops.py, number by number. */

static uint64_t stream_mixed(uint64_t z) {
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

static uint64_t stream_next(uint64_t *state) { return stream_mixed(*state += 0x9E3779B97F4A7C15u); }

static uint64_t stream_begin(uint64_t seed, uint64_t key) {
    uint64_t state = 0;
    state = stream_next(&state) ^ seed;
    state = stream_next(&state);
    state = stream_next(&state) ^ key;
    return stream_next(&state);
}

static double stream_uniform(uint64_t *state) { return (double)(stream_next(state) >> 11) * 0x1p-53; }

static int64_t stream_below(uint64_t *state, int64_t limit) { /* below 2^32: the product in two halves */
    const uint64_t number = stream_next(state), many = (uint64_t)limit;
    return (int64_t)(((number >> 32) * many + ((number & 0xFFFFFFFFu) * many >> 32)) >> 32);
}

static int crop_draw(const CropSpec *spec, int64_t height, int64_t width, uint64_t key, CropPlan *plan) {
    const double area = (double)(height * width), in_ratio = (double)width / (double)height;
    uint64_t state = stream_begin(spec->seed, key);
    double w = (double)width, h = (double)height;
    int attempt;

    for (attempt = 0; attempt < 10; attempt++) {
        const double target = area * (spec->scale[0] + stream_uniform(&state) * (spec->scale[1] - spec->scale[0]));
        const double aspect =
            exp(spec->log_ratio[0] + stream_uniform(&state) * (spec->log_ratio[1] - spec->log_ratio[0]));
        const double wide = rint(sqrt(target * aspect)), high = rint(sqrt(target / aspect));
        if (!isfinite(wide) || !isfinite(high)) return 0; /* Python has an error for it */
        if (wide > 0 && wide <= w && high > 0 && high <= h) {
            plan->top = stream_below(&state, height - (int64_t)high + 1);
            plan->left = stream_below(&state, width - (int64_t)wide + 1);
            w = wide, h = high;
            break;
        }
    }
    if (attempt == 10) {
        if (in_ratio < spec->ratio[0]) h = rint(w / spec->ratio[0]);
        else if (in_ratio > spec->ratio[1]) w = rint(h * spec->ratio[1]);
        if (!(h >= 1 && h <= (double)height && w >= 1 && w <= (double)width)) return 0;
        plan->top = (height - (int64_t)h) / 2;
        plan->left = (width - (int64_t)w) / 2;
    }
    plan->height = (int64_t)h, plan->width = (int64_t)w;
    plan->across = spec->flip > 0 && stream_uniform(&state) < spec->flip;
    plan->resized_height = spec->height, plan->resized_width = spec->width;
    return 1;
}

/* As in torchvision: half to even where a window cuts, down where it is larger. */
static int64_t middle_of(int64_t longer) { return longer < 0 ? longer / 2 : (int64_t)rint((double)longer / 2.0); }

static void crop_centre(const CropSpec *spec, int64_t height, int64_t width, CropPlan *plan) {
    plan->height = height, plan->width = width;
    plan->resized_height = spec->resize[0], plan->resized_width = spec->resize[1];
    if (!spec->resize[1]) {
        const double ratio = fmax((double)height / (double)spec->height, (double)width / (double)spec->width);
        plan->resized_height = (int64_t)((double)height / ratio);
        plan->resized_width = (int64_t)((double)width / ratio);
    } else if (!spec->resize[0]) {
        const int64_t longer = (int64_t)((double)(spec->resize[1] * (height > width ? height : width)) /
                                         (double)(height > width ? width : height));
        plan->resized_height = height > width ? longer : spec->resize[1];
        plan->resized_width = height > width ? spec->resize[1] : longer;
    }
    plan->window_top = middle_of(plan->resized_height - spec->height);
    plan->window_left = middle_of(plan->resized_width - spec->width);
}

/* Whether a side takes an axis: for zeros around it, too. */
static int resizes_side(int64_t resized, int64_t side, int64_t size) { return resized != side || resized < size; }

static int window_fits(int64_t window, int64_t size, int64_t resized) {
    const int64_t most = resized - size;
    if (resized < 1 || resized > MOST_SIDE) return 0;
    return most < 0 ? window <= 0 && window >= most : window >= 0 && window <= most;
}

/* Whether a plan can be carried out here; all that follows relies on it. No side is above MOST_SIDE. */
static int crop_fits(const CropSpec *spec, int64_t height, int64_t width, const CropPlan *plan) {
    if (plan->height < 1 || plan->width < 1 || plan->height > height || plan->width > width) return 0;
    if (plan->top < 0 || plan->left < 0 || plan->top > height - plan->height || plan->left > width - plan->width) return 0;
    if (!window_fits(plan->window_top, spec->height, plan->resized_height)) return 0;
    if (!window_fits(plan->window_left, spec->width, plan->resized_width)) return 0;
    if (!resizes_side(plan->resized_height, plan->height, spec->height) &&
        !resizes_side(plan->resized_width, plan->width, spec->width))
        return 1;
    return spec->resizes && plan->resized_height * plan->resized_width <= spec->max_pixels;
}

static int crop_plan(const CropSpec *spec, int64_t height, int64_t width, uint64_t key, const CropPlan *given,
                     CropPlan *plan) {
    memset(plan, 0, sizeof *plan);
    if (spec->kind == CROP_GIVEN) *plan = *given;
    else if (spec->kind == CROP_CENTRE) crop_centre(spec, height, width, plan);
    else if (!crop_draw(spec, height, width, key, plan)) return 0;
    return crop_fits(spec, height, width, plan);
}

/* Memory of one thread, kept from image to image. */

typedef struct {
    void *at;
    size_t size;
} Room;

static void *room_of(Room *room, size_t size) {
    if (size > room->size) {
        free(room->at);
        room->at = malloc(size);
        room->size = room->at ? size : 0;
    }
    return room->at;
}

/* The weights of one axis: output i is the sum of weights[i * taps + j] * input[first[i] + j] for j below count[i],
   which are inside the input. taps is a multiple of 4; weights behind count[i] are 0. The last output is a sum of
   nothing, for what is around a region. */
typedef struct {
    int64_t in, out;
    int is_bicubic, precision;
    size_t taps;
    int32_t *first, *count;
    int16_t *weights;
    Room room;
} Axis;

static double axis_filter(double x, int is_bicubic) {
    x = fabs(x);
    if (!is_bicubic) return x < 1 ? 1 - x : 0;
    if (x < 1) return ((-0.5 + 2) * x - (-0.5 + 3)) * x * x + 1;
    return x < 2 ? (((x - 5) * x + 8) * x - 4) * -0.5 : 0;
}

/* Sides are 1 to MOST_SIDE: so taps is at most 2^32 + 4, and out * taps below 2^36. */
static int axis_make(Axis *axis, int64_t in, int64_t out, int is_bicubic) {
    const double scale = (double)in / (double)out, inverse = scale >= 1 ? 1 / scale : 1;
    const double support = (is_bicubic ? 2.0 : 1.0) * (scale >= 1 ? scale : 1);
    const size_t taps = ((size_t)ceil(support) * 2 + 4) & ~(size_t)3, many = (size_t)out;
    double largest = 0, *exact;
    int64_t i;
    int32_t j;
    size_t at;

    if (axis->in == in && axis->out == out && axis->is_bicubic == is_bicubic) return 1;
    axis->in = 0;
    exact = room_of(&axis->room, (many + 1) * (taps * (sizeof(double) + sizeof(int16_t)) + 2 * sizeof(int32_t)));
    if (!exact) return 0;
    axis->first = (int32_t *)(exact + many * taps);
    axis->count = axis->first + many + 1;
    axis->weights = (int16_t *)(axis->count + many + 1);
    axis->first[many] = axis->count[many] = 0;
    for (i = 0; i < out; i++) {
        const double center = scale * ((double)i + 0.5);
        const int64_t from = (int64_t)(center - support + 0.5), to = (int64_t)(center + support + 0.5);
        const int32_t first = (int32_t)(from > 0 ? from : 0), count = (int32_t)(to < in ? to : in) - first;
        double *row = exact + (size_t)i * taps, total = 0;
        if (count < 1 || (size_t)count > taps) return 0; /* never */
        for (j = 0; j < count; j++) {
            row[j] = axis_filter(((double)(j + first) - center + 0.5) * inverse, is_bicubic);
            total += row[j];
        }
        for (j = 0; j < count; j++) {
            if (total != 0) row[j] /= total;
            if (row[j] > largest) largest = row[j];
        }
        for (; (size_t)j < taps; j++) row[j] = 0;
        axis->first[i] = first, axis->count[i] = count;
    }
    for (axis->precision = 0; axis->precision < 22; axis->precision++)
        if ((int)(0.5 + largest * (1 << (axis->precision + 1))) >= 1 << 15) break;
    for (at = 0; at < many * taps; at++) {
        const double scaled = exact[at] * (1 << axis->precision);
        axis->weights[at] = (int16_t)(int)(scaled < 0 ? scaled - 0.5 : scaled + 0.5);
    }
    axis->in = in, axis->out = out, axis->is_bicubic = is_bicubic, axis->taps = taps;
    return 1;
}

/* Which columns of the output a row has. */
typedef struct {
    int64_t begin, count, channels;
    size_t end; /* what is not below it, as a number without a sign, is around the region */
    int is_mirrored;
} Columns;

static size_t column_at(const Columns *columns, int64_t place) {
    const size_t at = (size_t)(columns->begin + (columns->is_mirrored ? columns->count - 1 - place : place));
    return at < columns->end ? at : columns->end;
}

static void columns_copied(const Columns *columns, const unsigned char *row, unsigned char *out) {
    const int64_t step = columns->is_mirrored ? -4 : 4;
    int64_t place;
    row += column_at(columns, 0) * 4;
    for (place = 0; place < columns->count; place++, row += step, out += columns->channels)
        memcpy(out, row, 4); /* as below: up to 3 bytes behind the end */
}

#if defined(__x86_64__) && defined(__GNUC__)

#include <immintrin.h>

#define AVX2 __attribute__((target("avx2")))

static int crop_can_resize(void) { return __builtin_cpu_supports("avx2") != 0; }

/* Two neighbouring taps: one multiply-add of int16 pairs, as Pillow-SIMD and torch do. */
AVX2 static inline __m256i pair_of(const int16_t *weights) {
    int32_t both;
    memcpy(&both, weights, sizeof both);
    return _mm256_set1_epi32(both);
}

/* Two rows' next four pixels times four weights. `low` brings each channel's values of pixels 0 and 1 side by side, as
   16 bits, `high` those of pixels 2 and 3. */
AVX2 static inline __m256i four_taps(__m256i sums, const unsigned char *upper, const unsigned char *lower,
                                     const int16_t *weights, __m256i low, __m256i high) {
    const __m256i pixels = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)upper)),
                                                   _mm_loadu_si128((const __m128i *)lower), 1);
    sums = _mm256_add_epi32(sums, _mm256_madd_epi16(_mm256_shuffle_epi8(pixels, low), pair_of(weights)));
    return _mm256_add_epi32(sums, _mm256_madd_epi16(_mm256_shuffle_epi8(pixels, high), pair_of(weights + 2)));
}

/* Four rows. Reads up to 12 bytes behind a row, times 0, and writes up to 3 behind. */
AVX2 static void columns_resized(const Axis *axis, const Columns *columns, const unsigned char *const rows[4],
                                 unsigned char *const outs[4]) {
    const __m256i low = _mm256_setr_epi8(0, -1, 4, -1, 1, -1, 5, -1, 2, -1, 6, -1, 3, -1, 7, -1, 0, -1, 4, -1, 1, -1, 5,
                                         -1, 2, -1, 6, -1, 3, -1, 7, -1);
    const __m256i high = _mm256_add_epi8(low, _mm256_set1_epi16(8)); /* -1 stays */
    const __m128i shift = _mm_cvtsi32_si128(axis->precision);
    int64_t place;
    int32_t tap, pixels[8];

    for (place = 0; place < columns->count; place++) {
        const size_t column = column_at(columns, place), out = (size_t)(place * columns->channels);
        const int16_t *weights = axis->weights + column * axis->taps;
        __m256i upper = _mm256_set1_epi32(1 << (axis->precision - 1)), lower = upper;
        for (tap = 0; tap < axis->count[column]; tap += 4) {
            const size_t at = ((size_t)axis->first[column] + (size_t)tap) * 4;
            upper = four_taps(upper, rows[0] + at, rows[1] + at, weights + tap, low, high);
            lower = four_taps(lower, rows[2] + at, rows[3] + at, weights + tap, low, high);
        }
        upper = _mm256_packs_epi32(_mm256_sra_epi32(upper, shift), _mm256_sra_epi32(lower, shift));
        _mm256_storeu_si256((__m256i *)pixels, _mm256_packus_epi16(upper, upper));
        memcpy(outs[0] + out, pixels, 4);
        memcpy(outs[1] + out, pixels + 4, 4);
        memcpy(outs[2] + out, pixels + 1, 4);
        memcpy(outs[3] + out, pixels + 5, 4);
    }
}

/* One row of `size` bytes; the input begins with row `begins` of the axis. Reads and writes up to 31 bytes behind. */
AVX2 static void rows_resized(const Axis *axis, int64_t row, const unsigned char *input, int64_t begins, size_t stride,
                              size_t size, unsigned char *out) {
    const size_t own = (size_t)row < (size_t)axis->out ? (size_t)row : (size_t)axis->out;
    const int16_t *weights = axis->weights + own * axis->taps;
    const __m256i half = _mm256_set1_epi32(1 << (axis->precision - 1)), zero = _mm256_setzero_si256();
    const __m128i shift = _mm_cvtsi32_si128(axis->precision);
    const int32_t count = axis->count[own];
    size_t begin;
    int32_t j;

    input += (size_t)(axis->first[own] - begins) * stride;
    for (begin = 0; begin < size; begin += 32) {
        __m256i a = half, b = half, c = half, d = half;
        for (j = 0; j < count; j += 2) {
            const unsigned char *at = input + (size_t)j * stride + begin;
            const __m256i pair = pair_of(weights + j), upper = _mm256_loadu_si256((const __m256i *)at);
            const __m256i lower = j + 1 < count ? _mm256_loadu_si256((const __m256i *)(at + stride)) : zero;
            const __m256i low = _mm256_unpacklo_epi8(upper, lower), high = _mm256_unpackhi_epi8(upper, lower);
            a = _mm256_add_epi32(a, _mm256_madd_epi16(_mm256_unpacklo_epi8(low, zero), pair));
            b = _mm256_add_epi32(b, _mm256_madd_epi16(_mm256_unpackhi_epi8(low, zero), pair));
            c = _mm256_add_epi32(c, _mm256_madd_epi16(_mm256_unpacklo_epi8(high, zero), pair));
            d = _mm256_add_epi32(d, _mm256_madd_epi16(_mm256_unpackhi_epi8(high, zero), pair));
        }
        a = _mm256_packs_epi32(_mm256_sra_epi32(a, shift), _mm256_sra_epi32(b, shift));
        c = _mm256_packs_epi32(_mm256_sra_epi32(c, shift), _mm256_sra_epi32(d, shift));
        _mm256_storeu_si256((__m256i *)(out + begin), _mm256_packus_epi16(a, c));
    }
}

#else /* torchvision resizes float32 there, and so does Python */

static int crop_can_resize(void) { return 0; }
#define columns_resized(axis, columns, rows, outs) abort()
#define rows_resized(axis, row, input, begins, stride, size, out) abort()

#endif

/* What a thread keeps from image to image; all zeros at first. */
typedef struct {
    Room pixels, wide, line;
    Axis across, down;
} CropMemory;

static void crop_memory_free(CropMemory *memory) {
    free(memory->pixels.at);
    free(memory->wide.at);
    free(memory->line.at);
    free(memory->across.room.at);
    free(memory->down.room.at);
}

/* Pixels of fewer channels as pixels of 4 bytes; may be the same memory if the pixels are at its end. */
static void crop_spread(const unsigned char *pixels, int64_t count, int64_t channels, unsigned char *out) {
    int64_t at, c;
    for (at = 0; at < count; at++)
        for (c = 0; c < channels; c++) out[at * 4 + c] = pixels[at * channels + c];
}

/* Resizes pixels [plan.height][plan.width][4], of which the first `channels` count and BEHIND bytes follow, and writes
   the window of the result to out: uint8 [height][width][channels], or with a table [channels][256] float32
   [channels][height][width]. Relies on crop_fits; returns 0 without memory. */
static int crop_place(const CropSpec *spec, const CropPlan *plan, const unsigned char *pixels, const float *table,
                      void *out, CropMemory *memory) {
    const int resizes_rows = resizes_side(plan->resized_height, plan->height, spec->height);
    const int resizes_columns = resizes_side(plan->resized_width, plan->width, spec->width);
    const Columns columns = {plan->window_left, spec->width, spec->channels, (size_t)plan->resized_width,
                             plan->across != 0};
    const size_t size = (size_t)(spec->width * spec->channels), stride = size + 4;
    /* The rows of the region that the window needs. */
    int64_t first = plan->window_top, end = first + spec->height, row, x, c;
    unsigned char *wide, *line;
    int each;

    if (resizes_columns && !axis_make(&memory->across, plan->width, plan->resized_width, spec->is_bicubic)) return 0;
    if (resizes_rows) {
        if (!axis_make(&memory->down, plan->height, plan->resized_height, spec->is_bicubic)) return 0;
        /* Neither the first nor the end of a row's inputs ever decreases from row to row. */
        end = (end < plan->resized_height ? end : plan->resized_height) - 1;
        first = memory->down.first[first > 0 ? first : 0];
        end = memory->down.first[end] + memory->down.count[end];
    }
    wide = room_of(&memory->wide, (size_t)(end - first) * stride + BEHIND);
    line = room_of(&memory->line, size + BEHIND);
    if (!wide || !line) return 0;
    for (row = first; row < end; row += 4) {
        const unsigned char *inputs[4];
        unsigned char *outputs[4];
        for (each = 0; each < 4; each++) {
            const int64_t at = row + each < end ? row + each : end - 1; /* the last row up to four times */
            inputs[each] = pixels + (size_t)(at * plan->width) * 4;
            outputs[each] = wide + (size_t)(at - first) * stride;
            if (!resizes_columns) columns_copied(&columns, inputs[each], outputs[each]);
        }
        if (resizes_columns) columns_resized(&memory->across, &columns, inputs, outputs);
    }
    for (row = 0; row < spec->height; row++) {
        const int64_t target = plan->down ? spec->height - 1 - row : row;
        const unsigned char *found = resizes_rows ? line : wide + (size_t)row * stride;
        if (resizes_rows) rows_resized(&memory->down, plan->window_top + row, wide, first, stride, size, line);
        if (!table) memcpy((unsigned char *)out + (size_t)target * size, found, size);
        for (c = 0; table && c < spec->channels; c++) {
            float *values = (float *)out + (c * spec->height + target) * spec->width;
            for (x = 0; x < spec->width; x++) values[x] = table[c * 256 + found[x * spec->channels + c]];
        }
    }
    return 1;
}
