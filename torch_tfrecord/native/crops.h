/* From decoded pixels to a row of a batch: what is cut out, the resize, the flips, the table of values.

   The resize has torch's rules for uint8 (aten/src/ATen/native/cpu/UpSampleKernel.cpp, after Pillow): weights in double,
   normalised, then int16 with one precision for each axis; columns first, to uint8, then rows; an axis that keeps its
   size is left alone. Sums of integers do not depend on their order, so plain C and AVX2 give the same bits. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define HAS_AVX2_CODE 1
#endif

/* What to do with one image; as int64 [10] also Python's. */
typedef struct {
    int64_t top, left, height, width; /* cut out */
    int64_t resized_height, resized_width;
    int64_t window_top, window_left; /* of the result in the resized region */
    int64_t across, down;            /* mirrored */
} CropPlan;

enum { CROP_GIVEN = 0, CROP_RANDOM = 1, CROP_CENTRE = 2 };

typedef struct {
    int kind;
    int is_bicubic, resizes; /* whether it may be resized here */
    int is_plain;            /* without AVX2, for tests */
    int ignores_exif;        /* leaves images unturned */
    int64_t height, width, channels; /* of the result; 1 or 3 channels */
    int64_t max_pixels;
    uint64_t seed;
    double scale[2], ratio[2], log_ratio[2], flip;
    int64_t resize[2]; /* height and width; height 0: width is the length of the shorter side */
} CropSpec;

/* Longer sides are left to Python: so the product of two sides and 4 bytes fits int64 and size_t. */
#define MOST_SIDE (1 << 30)
/* Vectors read and write up to so many bytes behind a row. */
#define BEHIND 64

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

static void crop_centre(const CropSpec *spec, int64_t height, int64_t width, CropPlan *plan) {
    plan->height = height, plan->width = width;
    plan->resized_height = spec->resize[0], plan->resized_width = spec->resize[1];
    if (!spec->resize[0]) {
        const int64_t longer = (int64_t)((double)(spec->resize[1] * (height > width ? height : width)) /
                                         (double)(height > width ? width : height));
        plan->resized_height = height > width ? longer : spec->resize[1];
        plan->resized_width = height > width ? spec->resize[1] : longer;
    }
    plan->window_top = (int64_t)rint((double)(plan->resized_height - spec->height) / 2.0);
    plan->window_left = (int64_t)rint((double)(plan->resized_width - spec->width) / 2.0);
}

/* Whether a plan can be carried out here; all that follows relies on it. No side is above MOST_SIDE. */
static int crop_fits(const CropSpec *spec, int64_t height, int64_t width, const CropPlan *plan) {
    if (plan->height < 1 || plan->width < 1 || plan->height > height || plan->width > width) return 0;
    if (plan->top < 0 || plan->left < 0 || plan->top > height - plan->height || plan->left > width - plan->width) return 0;
    if (plan->resized_height > MOST_SIDE || plan->resized_width > MOST_SIDE) return 0;
    if (plan->window_top < 0 || plan->window_top > plan->resized_height - spec->height) return 0;
    if (plan->window_left < 0 || plan->window_left > plan->resized_width - spec->width) return 0;
    if (plan->resized_height == plan->height && plan->resized_width == plan->width) return 1;
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
   which are inside the input. taps is even; weights behind count[i] are 0. */
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

/* Sides are 1 to MOST_SIDE: so taps is at most 2^32 + 2, and out * taps below 2^36. */
static int axis_make(Axis *axis, int64_t in, int64_t out, int is_bicubic) {
    const double scale = (double)in / (double)out, inverse = scale >= 1 ? 1 / scale : 1;
    const double support = (is_bicubic ? 2.0 : 1.0) * (scale >= 1 ? scale : 1);
    const size_t taps = ((size_t)ceil(support) * 2 + 2) & ~(size_t)1, many = (size_t)out;
    double largest = 0, *exact;
    int64_t i;
    int32_t j;
    size_t at;

    if (axis->in == in && axis->out == out && axis->is_bicubic == is_bicubic) return 1;
    axis->in = 0;
    exact = room_of(&axis->room, many * (taps * (sizeof(double) + sizeof(int16_t)) + 2 * sizeof(int32_t)));
    if (!exact) return 0;
    axis->first = (int32_t *)(exact + many * taps);
    axis->count = axis->first + many;
    axis->weights = (int16_t *)(axis->count + many);
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

static unsigned char clipped(int32_t value) { return (unsigned char)(value < 0 ? 0 : value > 255 ? 255 : value); }

/* Columns. `step` bytes for each pixel become `channels` of them; row is [width of the input][step]. */

typedef struct {
    int64_t begin, count; /* which columns of the output */
    int is_mirrored;
    int step, channels;
} Columns;

static int64_t column_at(const Columns *columns, int64_t place) {
    return columns->begin + (columns->is_mirrored ? columns->count - 1 - place : place);
}

static void columns_copied(const Columns *columns, const unsigned char *row, unsigned char *out) {
    int64_t place;
    int c;
    if (!columns->is_mirrored && columns->step == columns->channels) {
        memcpy(out, row + columns->begin * columns->step, (size_t)(columns->count * columns->step));
        return;
    }
    for (place = 0; place < columns->count; place++) {
        const unsigned char *pixel = row + column_at(columns, place) * columns->step;
        for (c = 0; c < columns->channels; c++) *out++ = pixel[c];
    }
}

static void columns_resized(const Axis *axis, const Columns *columns, const unsigned char *row, unsigned char *out) {
    int64_t place;
    int32_t j;
    int c;
    for (place = 0; place < columns->count; place++) {
        const int64_t column = column_at(columns, place);
        const int16_t *weights = axis->weights + (size_t)column * axis->taps;
        for (c = 0; c < columns->channels; c++) {
            const unsigned char *value = row + (size_t)axis->first[column] * (size_t)columns->step + c;
            int32_t sum = 1 << (axis->precision - 1);
            for (j = 0; j < axis->count[column]; j++) sum += weights[j] * value[(size_t)j * (size_t)columns->step];
            *out++ = clipped(sum >> axis->precision);
        }
    }
}

/* Row `row` of the output, of `size` bytes; input begins with row `begins` of the axis, its rows are `stride` bytes
   apart. */
static void rows_resized(const Axis *axis, int64_t row, const unsigned char *input, int64_t begins, size_t stride,
                         size_t size, unsigned char *out) {
    const int16_t *weights = axis->weights + (size_t)row * axis->taps;
    const unsigned char *first = input + (size_t)(axis->first[row] - begins) * stride;
    int32_t sums[64], j;
    size_t begin, at, count;
    for (begin = 0; begin < size; begin += count) {
        count = size - begin < 64 ? size - begin : 64;
        for (at = 0; at < count; at++) sums[at] = 1 << (axis->precision - 1);
        for (j = 0; j < axis->count[row]; j++)
            for (at = 0; at < count; at++) sums[at] += weights[j] * first[(size_t)j * stride + begin + at];
        for (at = 0; at < count; at++) out[begin + at] = clipped(sums[at] >> axis->precision);
    }
}

#ifdef HAS_AVX2_CODE

#define AVX2 __attribute__((target("avx2")))

/* Two neighbouring taps: one multiply-add of int16 pairs, as Pillow-SIMD and torch do. */
AVX2 static inline int32_t four_bytes(const void *at) {
    int32_t bytes;
    memcpy(&bytes, at, sizeof bytes);
    return bytes;
}

AVX2 static inline __m256i pair_of(const int16_t *weights) { return _mm256_set1_epi32(four_bytes(weights)); }

AVX2 static inline __m256i two_rows(__m128i upper, __m128i lower) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(upper), lower, 1);
}

AVX2 static inline void four_bytes_to(unsigned char *out, __m128i pixel) {
    const int32_t bytes = _mm_cvtsi128_si32(pixel);
    memcpy(out, &bytes, sizeof bytes);
}

/* Four rows of pixels of 4 bytes; each output row is written up to 4 - channels bytes behind its end. */
AVX2 static void columns_resized_avx2(const Axis *axis, const Columns *columns, const unsigned char *const rows[4],
                                      unsigned char *const outs[4]) {
    /* of pixels 0 and 1 (2 and 3) each channel's two values side by side, as 16 bits */
    const __m256i low = _mm256_setr_epi8(0, -1, 4, -1, 1, -1, 5, -1, 2, -1, 6, -1, 3, -1, 7, -1, 0, -1, 4, -1, 1, -1, 5,
                                         -1, 2, -1, 6, -1, 3, -1, 7, -1);
    const __m256i high = _mm256_add_epi8(low, _mm256_set1_epi16(8)); /* -1 stays */
    const __m256i half = _mm256_set1_epi32(1 << (axis->precision - 1));
    const __m128i shift = _mm_cvtsi32_si128(axis->precision);
    int64_t place;

    for (place = 0; place < columns->count; place++) {
        const int64_t column = column_at(columns, place);
        const int16_t *weights = axis->weights + (size_t)column * axis->taps;
        const size_t first = (size_t)axis->first[column] * 4, end = (size_t)axis->count[column] * 4;
        __m256i upper = half, lower = half, pixels, pair;
        size_t at = 0;
        for (; at + 16 <= end; at += 16) {
            pair = pair_of(weights + at / 4);
            const __m256i next = pair_of(weights + at / 4 + 2);
            pixels = two_rows(_mm_loadu_si128((const __m128i *)(rows[0] + first + at)),
                              _mm_loadu_si128((const __m128i *)(rows[1] + first + at)));
            upper = _mm256_add_epi32(upper, _mm256_madd_epi16(_mm256_shuffle_epi8(pixels, low), pair));
            upper = _mm256_add_epi32(upper, _mm256_madd_epi16(_mm256_shuffle_epi8(pixels, high), next));
            pixels = two_rows(_mm_loadu_si128((const __m128i *)(rows[2] + first + at)),
                              _mm_loadu_si128((const __m128i *)(rows[3] + first + at)));
            lower = _mm256_add_epi32(lower, _mm256_madd_epi16(_mm256_shuffle_epi8(pixels, low), pair));
            lower = _mm256_add_epi32(lower, _mm256_madd_epi16(_mm256_shuffle_epi8(pixels, high), next));
        }
        for (; at + 8 <= end; at += 8) {
            pair = pair_of(weights + at / 4);
            pixels = two_rows(_mm_loadl_epi64((const __m128i *)(rows[0] + first + at)),
                              _mm_loadl_epi64((const __m128i *)(rows[1] + first + at)));
            upper = _mm256_add_epi32(upper, _mm256_madd_epi16(_mm256_shuffle_epi8(pixels, low), pair));
            pixels = two_rows(_mm_loadl_epi64((const __m128i *)(rows[2] + first + at)),
                              _mm_loadl_epi64((const __m128i *)(rows[3] + first + at)));
            lower = _mm256_add_epi32(lower, _mm256_madd_epi16(_mm256_shuffle_epi8(pixels, low), pair));
        }
        if (at < end) { /* the weight behind it is 0, and so are the other pixels of what is loaded */
            pair = pair_of(weights + at / 4);
            pixels = two_rows(_mm_cvtsi32_si128(four_bytes(rows[0] + first + at)),
                              _mm_cvtsi32_si128(four_bytes(rows[1] + first + at)));
            upper = _mm256_add_epi32(upper, _mm256_madd_epi16(_mm256_shuffle_epi8(pixels, low), pair));
            pixels = two_rows(_mm_cvtsi32_si128(four_bytes(rows[2] + first + at)),
                              _mm_cvtsi32_si128(four_bytes(rows[3] + first + at)));
            lower = _mm256_add_epi32(lower, _mm256_madd_epi16(_mm256_shuffle_epi8(pixels, low), pair));
        }
        upper = _mm256_packs_epi32(_mm256_sra_epi32(upper, shift), _mm256_sra_epi32(lower, shift));
        upper = _mm256_packus_epi16(upper, upper); /* rows 0 and 2, then rows 1 and 3 */
        const __m128i evens = _mm256_castsi256_si128(upper), odds = _mm256_extracti128_si256(upper, 1);
        four_bytes_to(outs[0] + place * columns->channels, evens);
        four_bytes_to(outs[2] + place * columns->channels, _mm_srli_si128(evens, 4));
        four_bytes_to(outs[1] + place * columns->channels, odds);
        four_bytes_to(outs[3] + place * columns->channels, _mm_srli_si128(odds, 4));
    }
}

/* Reads and writes up to 31 bytes behind the row. */
AVX2 static void rows_resized_avx2(const Axis *axis, int64_t row, const unsigned char *input, int64_t begins,
                                   size_t stride, size_t size, unsigned char *out) {
    const int16_t *weights = axis->weights + (size_t)row * axis->taps;
    const unsigned char *first = input + (size_t)(axis->first[row] - begins) * stride;
    const int32_t count = axis->count[row];
    const __m256i half = _mm256_set1_epi32(1 << (axis->precision - 1)), zero = _mm256_setzero_si256();
    const __m128i shift = _mm_cvtsi32_si128(axis->precision);
    size_t begin;
    int32_t j;

    for (begin = 0; begin < size; begin += 32) {
        __m256i a = half, b = half, c = half, d = half;
        for (j = 0; j < count; j += 2) {
            const unsigned char *at = first + (size_t)j * stride + begin;
            const __m256i pair = pair_of(weights + j), upper = _mm256_loadu_si256((const __m256i *)at);
            /* the weight of a row behind the last one is 0 */
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

/* Resizes pixels [plan.height][plan.width][step], `stride` bytes from row to row, and writes the window of the result to
   out: uint8 [height][width][channels], or with a table [channels][256] float32 [channels][height][width].
   Relies on crop_fits; returns 0 without memory. */
static int crop_place(const CropSpec *spec, const CropPlan *plan, const unsigned char *pixels, int step, size_t stride,
                      const float *table, void *out, CropMemory *memory) {
    const int resizes_rows = plan->resized_height != plan->height;
    const int resizes_columns = plan->resized_width != plan->width;
    const Columns columns = {plan->window_left, spec->width, plan->across != 0, step, (int)spec->channels};
    const size_t size = (size_t)(spec->width * spec->channels), wide_stride = size + 4;
    /* The rows of the region that the window needs. */
    int64_t first = plan->window_top, end = plan->window_top + spec->height, row, place, x, c;
    unsigned char *wide, *line;
#ifdef HAS_AVX2_CODE
    const int is_fast = !spec->is_plain && __builtin_cpu_supports("avx2");
#endif

    if (resizes_columns && !axis_make(&memory->across, plan->width, plan->resized_width, spec->is_bicubic)) return 0;
    if (resizes_rows) {
        if (!axis_make(&memory->down, plan->height, plan->resized_height, spec->is_bicubic)) return 0;
        /* Neither the first nor the end of a row's inputs ever decreases from row to row. */
        first = memory->down.first[first];
        end = memory->down.first[end - 1] + memory->down.count[end - 1];
    }
    wide = room_of(&memory->wide, (size_t)(end - first) * wide_stride + BEHIND);
    line = room_of(&memory->line, size + BEHIND);
    if (!wide || !line) return 0;
    for (row = first; row < end; row++) {
        const unsigned char *input = pixels + (size_t)row * stride;
        unsigned char *output = wide + (size_t)(row - first) * wide_stride;
        if (!resizes_columns) {
            columns_copied(&columns, input, output);
            continue;
        }
#ifdef HAS_AVX2_CODE
        if (is_fast && step == 4) {
            const int64_t more = end - 1 - row < 3 ? end - 1 - row : 3; /* the last row up to four times */
            const unsigned char *inputs[4];
            unsigned char *outputs[4];
            for (place = 0; place < 4; place++) {
                inputs[place] = input + (size_t)(place < more ? place : more) * stride;
                outputs[place] = output + (size_t)(place < more ? place : more) * wide_stride;
            }
            columns_resized_avx2(&memory->across, &columns, inputs, outputs);
            row += more;
            continue;
        }
#endif
        columns_resized(&memory->across, &columns, input, output);
    }
    for (row = 0; row < spec->height; row++) {
        const int64_t target = plan->down ? spec->height - 1 - row : row, from = plan->window_top + row;
        const unsigned char *found = line;
        if (!resizes_rows) found = wide + (size_t)row * wide_stride;
#ifdef HAS_AVX2_CODE
        else if (is_fast) rows_resized_avx2(&memory->down, from, wide, first, wide_stride, size, line);
#endif
        else rows_resized(&memory->down, from, wide, first, wide_stride, size, line);
        if (!table) {
            memcpy((unsigned char *)out + (size_t)target * size, found, size);
            continue;
        }
        for (c = 0; c < spec->channels; c++) {
            float *values = (float *)out + (size_t)((c * spec->height + target) * spec->width);
            for (x = 0; x < spec->width; x++) values[x] = table[c * 256 + found[x * spec->channels + c]];
        }
    }
    return 1;
}
