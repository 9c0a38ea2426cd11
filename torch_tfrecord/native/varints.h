/* Varints (base 128, little end first) to int64: as many as possible by one load each. And a check of UTF-8.

   Functions only read inside the bytes they are given (up to `limit`, if there is one). "Checked" means that a wrong
   byte returns 0, and the caller leaves the record to protobuf. */
#ifndef TORCH_TFRECORD_VARINTS_H
#define TORCH_TFRECORD_VARINTS_H

#include <stdint.h>
#include <string.h>

#if !defined(__GNUC__) || !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "needs GCC or Clang and a little-endian machine; the package works without this module"
#endif

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define TFR_TOP_BITS UINT64_C(0x8080808080808080)
#define TFR_LOW_BITS UINT64_C(0x7f7f7f7f7f7f7f7f)

static inline uint64_t tfr_load64(const uint8_t *p) {
    uint64_t word;
    memcpy(&word, p, 8);
    return word;
}

/* Join the seven low bits of each byte. */
static inline uint64_t tfr_join_sevens(uint64_t x) {
    x &= TFR_LOW_BITS;
    x = (x & UINT64_C(0x007f007f007f007f)) | ((x & UINT64_C(0x7f007f007f007f00)) >> 1);
    x = (x & UINT64_C(0x00003fff00003fff)) | ((x & UINT64_C(0x3fff00003fff0000)) >> 2);
    return (x & UINT64_C(0x000000000fffffff)) | ((x & UINT64_C(0x0fffffff00000000)) >> 4);
}

/* Decode the varint that fills exactly `length` bytes, 1 to 8, of a word loaded from its first byte; checked. */
static inline int tfr_varint_of_word(uint64_t word, int64_t length, int64_t *value) {
    uint64_t top = TFR_TOP_BITS >> (64 - 8 * length);
    *value = (int64_t)tfr_join_sevens(word & (~UINT64_C(0) >> (64 - 8 * length)));
    return (word & top) == top >> 8; /* all bytes but the last continue */
}

/* Decode the varint that fills exactly `length` bytes, byte by byte; checked: at most ten bytes, of 64 bits. */
static inline int tfr_varint_of_bytes(const uint8_t *p, int64_t length, int64_t *value) {
    uint64_t result = 0;
    int64_t i;
    if (length < 1 || length > 10 || p[length - 1] >= 0x80 || (length == 10 && p[9] > 1))
        return 0;
    for (i = 0; i < length; i++) {
        if (i < length - 1 && p[i] < 0x80)
            return 0;
        result |= (uint64_t)(p[i] & 0x7f) << (7 * i);
    }
    *value = (int64_t)result;
    return 1;
}

/* The number of varints in exactly n bytes (the bytes without the top bit), -1 if the last one is truncated. */
static inline int64_t tfr_count_varints(const uint8_t *p, int64_t n) {
    int64_t count = 0, i = 0;
    if (n > 0 && p[n - 1] >= 0x80)
        return -1;
    while (n - i >= 8) {
        uint64_t sums = 0; /* eight counters of one byte: 255 rounds at most */
        int64_t rounds = (n - i) / 8 < 255 ? (n - i) / 8 : 255;
        for (; rounds > 0; rounds--, i += 8)
            sums += (~tfr_load64(p + i) & TFR_TOP_BITS) >> 7;
        sums = (sums & UINT64_C(0x00ff00ff00ff00ff)) + ((sums >> 8) & UINT64_C(0x00ff00ff00ff00ff));
        count += (int64_t)((sums * UINT64_C(0x0001000100010001)) >> 48);
    }
    for (; i < n; i++)
        count += p[i] < 0x80;
    return count;
}

/* Which of 64 bytes end a varint, the first byte in the lowest bit. */
static inline uint64_t tfr_ends_of_64(const uint8_t *p) {
#if defined(__SSE2__)
    uint64_t ends = 0;
    int i;
    for (i = 0; i < 4; i++) {
        __m128i bytes = _mm_loadu_si128((const __m128i *)(p + 16 * i));
        ends |= (uint64_t)(uint32_t)_mm_movemask_epi8(bytes) << (16 * i);
    }
    return ~ends;
#else
    uint64_t ends = 0;
    int i;
    for (i = 0; i < 8; i++) /* gather the eight top bits of a word in one byte */
        ends |= ((((~tfr_load64(p + 8 * i) & TFR_TOP_BITS) >> 7) * UINT64_C(0x0102040810204080)) >> 56) << (8 * i);
    return ends;
#endif
}

/* Decode the varints from p to end, as many as tfr_count_varints returns; checked. Bytes up to `limit`
   are readable. JOIN(word, mask) joins the low seven bits of the masked bytes. Far enough from the limit, each
   varint is one load; its end comes from a bit mask, so no load waits for the previous varint. */
#define TFR_DECODE_BODY(JOIN)                                                                                          \
    const uint8_t *begin = p, *block = p;                                                                              \
    while (block < end && limit - block >= 72) {                                                                       \
        uint64_t ends = tfr_ends_of_64(block);                                                                         \
        if (end - block < 64)                                                                                          \
            ends &= (UINT64_C(1) << (end - block)) - 1;                                                                \
        while (ends) {                                                                                                 \
            const uint8_t *last = block + __builtin_ctzll(ends);                                                       \
            int64_t length = last - begin + 1;                                                                         \
            if (__builtin_expect(length <= 8, 1))                                                                      \
                *out = (int64_t)JOIN(tfr_load64(begin), TFR_LOW_BITS >> (64 - 8 * length));                            \
            else if (!tfr_varint_of_bytes(begin, length, out))                                                         \
                return 0;                                                                                              \
            out++;                                                                                                     \
            begin = last + 1;                                                                                          \
            ends &= ends - 1;                                                                                          \
        }                                                                                                              \
        block += 64;                                                                                                   \
    }                                                                                                                  \
    while (begin < end) {                                                                                              \
        const uint8_t *last = begin;                                                                                   \
        while (last < end && *last >= 0x80)                                                                            \
            last++;                                                                                                    \
        if (last == end || !tfr_varint_of_bytes(begin, last - begin + 1, out))                                         \
            return 0;                                                                                                  \
        out++;                                                                                                         \
        begin = last + 1;                                                                                              \
    }                                                                                                                  \
    return 1;

#define TFR_JOIN_PLAIN(word, mask) tfr_join_sevens((word) & (mask))

static int tfr_decode_plain(const uint8_t *p, const uint8_t *end, const uint8_t *limit, int64_t *out) {
    TFR_DECODE_BODY(TFR_JOIN_PLAIN)
}

#if defined(__x86_64__)
__attribute__((target("bmi,bmi2"))) static int tfr_decode_bmi2(
    const uint8_t *p, const uint8_t *end, const uint8_t *limit, int64_t *out) {
    TFR_DECODE_BODY(_pext_u64)
}
#endif

#if defined(__x86_64__)
/* Sixteen at a time while all around are of four bytes at most: each into a lane of its own by one permutation. */
__attribute__((target("avx512f,avx512bw,avx512vbmi,avx512vbmi2,bmi,bmi2"))) static int tfr_decode_avx512(
    const uint8_t *p, const uint8_t *end, const uint8_t *limit, int64_t *out) {
    const __m512i places = _mm512_set_epi64(0x3f3e3d3c3b3a3938, 0x3736353433323130, 0x2f2e2d2c2b2a2928,
                                            0x2726252423222120, 0x1f1e1d1c1b1a1918, 0x1716151413121110,
                                            0x0f0e0d0c0b0a0908, 0x0706050403020100);
    while (end - p >= 64) {
        __m512i bytes = _mm512_loadu_si512(p), first, length, values;
        uint64_t more = _mm512_movepi8_mask(bytes), ends = ~more;
        uint64_t last = _pdep_u64(UINT64_C(1) << 15, ends); /* the end of the sixteenth */
        if (!last || (more & (more >> 1) & (more >> 2) & (more >> 3)))
            break;
        first = _mm512_cvtepu8_epi32(_mm512_castsi512_si128(_mm512_maskz_compress_epi8(ends << 1 | 1, places)));
        length = _mm512_cvtepu8_epi32(_mm512_castsi512_si128(_mm512_maskz_compress_epi8(ends, places)));
        length = _mm512_sub_epi32(length, first); /* less one */
        values = _mm512_shuffle_epi8(first, _mm512_set4_epi32(0x0c0c0c0c, 0x08080808, 0x04040404, 0));
        values = _mm512_add_epi8(values, _mm512_set1_epi32(0x03020100));
        values = _mm512_permutexvar_epi8(values, bytes);
        values = _mm512_and_si512(values, _mm512_srlv_epi32(_mm512_set1_epi32(0x7f7f7f7f),
                                                            _mm512_sub_epi32(_mm512_set1_epi32(24),
                                                                             _mm512_slli_epi32(length, 3))));
        values = _mm512_maddubs_epi16(_mm512_set1_epi16((short)0x8001), values);
        values = _mm512_madd_epi16(values, _mm512_set1_epi32(0x40000001));
        _mm512_storeu_si512(out, _mm512_cvtepu32_epi64(_mm512_castsi512_si256(values)));
        _mm512_storeu_si512(out + 8, _mm512_cvtepu32_epi64(_mm512_extracti64x4_epi64(values, 1)));
        out += 16;
        p += __builtin_ctzll(last) + 1;
    }
    return tfr_decode_bmi2(p, end, limit, out);
}
#endif

typedef int (*tfr_decoder)(const uint8_t *, const uint8_t *, const uint8_t *, int64_t *);

/* The decoders, starting with the slowest (0); NULL if this CPU lacks the instructions, or emulates them: pext is
   microcode on AMD before Zen 3. */
static tfr_decoder tfr_decoder_of(int level) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (level == 1 && __builtin_cpu_supports("bmi2") && !__builtin_cpu_is("amdfam17h"))
        return tfr_decode_bmi2;
    if (level == 2 && __builtin_cpu_supports("avx512vbmi2") && __builtin_cpu_supports("avx512vbmi") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("bmi2"))
        return tfr_decode_avx512;
#endif
    return level ? NULL : tfr_decode_plain;
}

/* Whether every varint of n bytes is one that the decoders take; checked. */
static inline int tfr_are_varints(const uint8_t *p, int64_t n) {
    int64_t begin = 0, i;
    if (n <= 9) /* too short for one of ten bytes */
        return n == 0 || p[n - 1] < 0x80;
    for (i = 0; i < n; i++) {
        if (p[i] >= 0x80)
            continue;
        if (i - begin >= 9 && (i - begin > 9 || p[i] > 1))
            return 0;
        begin = i + 1;
    }
    return begin == n;
}

/* Whether n bytes are strict UTF-8: no overlong form, no surrogate, nothing above U+10FFFF. */
static inline int tfr_is_utf8(const uint8_t *p, int64_t n) {
    int64_t i = 0;
    while (i < n) {
        uint8_t first = p[i], low = 0x80, high = 0xbf;
        int64_t more, j;
        if (first < 0x80) {
            i++;
            continue;
        }
        if (first < 0xc2 || first > 0xf4)
            return 0;
        more = first < 0xe0 ? 1 : first < 0xf0 ? 2 : 3;
        if (n - i <= more)
            return 0;
        if (first == 0xe0)
            low = 0xa0;
        else if (first == 0xed)
            high = 0x9f;
        else if (first == 0xf0)
            low = 0x90;
        else if (first == 0xf4)
            high = 0x8f;
        if (p[i + 1] < low || p[i + 1] > high)
            return 0;
        for (j = 2; j <= more; j++)
            if ((p[i + j] & 0xc0) != 0x80)
                return 0;
        i += more + 1;
    }
    return 1;
}

#endif
