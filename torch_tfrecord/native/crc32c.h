/* CRC-32C (Castagnoli, reflected polynomial 0x82F63B78) of bytes in memory, the fastest way on this CPU.
 *
 * x86-64 with SSE4.2 and PCLMUL: the crc32 instruction on three streams at once, as it issues each cycle with a latency
 * of three; the results are joined by two carry-less multiplications. ARMv8: the same, joined by a loop. Elsewhere,
 * eight tables ("slicing by 8"). crc32c_init chooses, and must be called first. No alignment is required.
 *
 * Joining: with the polynomial P, n more bytes turn a checksum into crc * x^(8n) mod P. In the reflected
 * form, a carry-less product of two 32-bit values, put through the instruction, is a * b * x^33 mod P; so the factor for
 * k words of eight bytes is x^(64k - 33) mod P. For k = 1 that is x^31, which is 1 in reflected form, and the
 * instruction itself multiplies by x^64.
 */
#ifndef TORCH_TFRECORD_CRC32C_H
#define TORCH_TFRECORD_CRC32C_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__)
#define CRC32C_X86 1
#include <immintrin.h>
#elif defined(__aarch64__) && defined(__GNUC__) && (defined(__linux__) || defined(__APPLE__))
#define CRC32C_ARM 1
#define CRC32C_STREAM_WORDS 256
#ifdef __clang__
#define CRC32C_ARM_TARGET "crc"
#else
#define CRC32C_ARM_TARGET "+crc"
#endif
#include <arm_acle.h>
#ifdef __linux__
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif
#endif

typedef uint32_t (*crc32c_function)(uint32_t crc, const uint8_t *data, size_t size);

static uint32_t crc32c_tables[8][256];
static crc32c_function crc32c_chosen;
static const char *crc32c_name;

/* Eight or four bytes in little-endian order, at any address. */
static inline uint64_t load_le64(const uint8_t *data) {
    uint64_t value;
    memcpy(&value, data, sizeof value);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    value = __builtin_bswap64(value);
#endif
    return value;
}

static inline uint32_t load_le32(const uint8_t *data) {
    uint32_t value;
    memcpy(&value, data, sizeof value);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    value = __builtin_bswap32(value);
#endif
    return value;
}

static void crc32c_make_tables(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78u : 0);
        crc32c_tables[0][byte] = crc;
    }
    for (uint32_t byte = 0; byte < 256; byte++)
        for (int n = 1; n < 8; n++) {
            uint32_t before = crc32c_tables[n - 1][byte];
            crc32c_tables[n][byte] = crc32c_tables[0][before & 0xFF] ^ before >> 8;
        }
}

/* All functions take and give the register, without the inversions before and after. */
static uint32_t crc32c_by_tables(uint32_t crc, const uint8_t *data, size_t size) {
    for (; size >= 8; data += 8, size -= 8) {
        uint64_t word = load_le64(data) ^ crc;
        crc = 0;
        for (int n = 0; n < 8; n++) crc ^= crc32c_tables[7 - n][word >> 8 * n & 0xFF];
    }
    for (; size; data++, size--) crc = crc32c_tables[0][(crc ^ *data) & 0xFF] ^ crc >> 8;
    return crc;
}

#ifdef CRC32C_X86
#define CRC32C_MAX_WORDS 256 /* per stream: joining then costs 2 percent, and 6 KiB fit into the L1 cache */
static uint32_t crc32c_factors[2 * CRC32C_MAX_WORDS + 1]; /* [k]: x^(64k - 33) mod P */
static int64_t crc32c_folds[8][2]; /* see crc32c_make_folds */

__attribute__((target("sse4.2,pclmul"))) static uint32_t crc32c_sse(uint32_t crc, const uint8_t *data, size_t size) {
    uint64_t first = crc;
    while (size >= 3 * 64) { /* below, joining costs more than it saves */
        size_t words = size / 24 < CRC32C_MAX_WORDS ? size / 24 : CRC32C_MAX_WORDS;
        const uint8_t *end = data + 8 * words;
        uint64_t second = 0, third = 0;
        for (; data < end; data += 8) {
            first = _mm_crc32_u64(first, load_le64(data));
            second = _mm_crc32_u64(second, load_le64(data + 8 * words));
            third = _mm_crc32_u64(third, load_le64(data + 16 * words));
        }
        __m128i joined = _mm_xor_si128(
            _mm_clmulepi64_si128(_mm_cvtsi64_si128((int64_t)first), _mm_cvtsi32_si128((int)crc32c_factors[2 * words]), 0),
            _mm_clmulepi64_si128(_mm_cvtsi64_si128((int64_t)second), _mm_cvtsi32_si128((int)crc32c_factors[words]), 0));
        first = third ^ _mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(joined));
        data += 16 * words;
        size -= 24 * words;
    }
    for (; size >= 8; data += 8, size -= 8) first = _mm_crc32_u64(first, load_le64(data));
    crc = (uint32_t)first;
    for (; size; data++, size--) crc = _mm_crc32_u8(crc, *data);
    return crc;
}

/* x^n mod P, reflected, in the upper half of a word, as folding wants it. */
static int64_t crc32c_power(int n) {
    uint32_t power = 0x80000000u; /* x^0 */
    for (; n; n--) power = power >> 1 ^ (power & 1 ? 0x82F63B78u : 0);
    return (int64_t)((uint64_t)power << 32);
}

/* Fold 256 bytes in four parts onto the next 256, at three times the speed of the crc32 instruction: each word
 * is multiplied by x^(distance) mod P, so that the rest is congruent to the whole (Gopal et al., Intel 2009). The
 * remainder modulo 256 comes first, with the instruction, and before this function's registers are in use:
 * legacy-encoded instructions are ten times slower while these are dirty. */
#define CRC32C_WIDE __attribute__((target("avx512f,vpclmulqdq,sse4.2,pclmul")))

CRC32C_WIDE static inline __m512i crc32c_folded(__m512i part, __m512i factor, __m512i onto) {
    return _mm512_ternarylogic_epi64(
        _mm512_clmulepi64_epi128(part, factor, 0x00), _mm512_clmulepi64_epi128(part, factor, 0x11), onto, 0x96); /* xor */
}

CRC32C_WIDE static inline __m512i crc32c_factor(int number) {
    return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)crc32c_folds[number]));
}

CRC32C_WIDE static uint32_t crc32c_avx512(uint32_t crc, const uint8_t *data, size_t size) {
    size_t head = size < 256 ? size : size % 256;
    crc = crc32c_sse(crc, data, head);
    if (head == size) return crc;
    data += head;
    const uint8_t *end = data + (size - head);
    __m512i a = _mm512_xor_si512(_mm512_loadu_si512(data), _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)crc)));
    __m512i b = _mm512_loadu_si512(data + 64), c = _mm512_loadu_si512(data + 128), d = _mm512_loadu_si512(data + 192);
    const __m512i by_256 = crc32c_factor(0);
    for (data += 256; data < end; data += 256) {
        a = crc32c_folded(a, by_256, _mm512_loadu_si512(data));
        b = crc32c_folded(b, by_256, _mm512_loadu_si512(data + 64));
        c = crc32c_folded(c, by_256, _mm512_loadu_si512(data + 128));
        d = crc32c_folded(d, by_256, _mm512_loadu_si512(data + 192));
    }
    d = crc32c_folded(a, crc32c_factor(1), crc32c_folded(b, crc32c_factor(2), crc32c_folded(c, crc32c_factor(3), d)));
    /* The four lanes of 16 bytes likewise, onto the last; that one's factors are zero. */
    __m512i lanes = crc32c_folded(d, _mm512_loadu_si512(crc32c_folds[4]), _mm512_setzero_si512());
    __m128i rest = _mm_xor_si128(
        _mm_xor_si128(_mm512_castsi512_si128(lanes), _mm512_extracti32x4_epi32(lanes, 1)),
        _mm_xor_si128(_mm512_extracti32x4_epi32(lanes, 2), _mm512_extracti32x4_epi32(d, 3)));
    uint64_t first = _mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(rest));
    return (uint32_t)_mm_crc32_u64(first, (uint64_t)_mm_extract_epi64(rest, 1));
}

/* Factors that move the first and second half of 16 bytes by a distance: of 256, 192, 128, 64, 48, 32, 16 bytes. */
static void crc32c_make_folds(void) {
    for (int n = 0; n < 7; n++) {
        int distance = n < 4 ? 64 * (4 - n) : 16 * (7 - n);
        crc32c_folds[n][0] = crc32c_power(8 * distance + 64 - 1);
        crc32c_folds[n][1] = crc32c_power(8 * distance - 1);
    }
}

static void crc32c_choose(void) {
    static const uint8_t zeros[8];
    uint32_t factor = 1;
    for (int k = 1; k <= 2 * CRC32C_MAX_WORDS; k++) {
        crc32c_factors[k] = factor;
        factor = crc32c_by_tables(factor, zeros, 8);
    }
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("sse4.2") || !__builtin_cpu_supports("pclmul")) return;
    crc32c_chosen = crc32c_sse;
    crc32c_name = "sse4.2";
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("vpclmulqdq")) return;
    crc32c_make_folds();
    crc32c_chosen = crc32c_avx512;
    crc32c_name = "avx512";
}
#endif

#ifdef CRC32C_ARM
static uint32_t crc32c_one_stream, crc32c_two_streams; /* x^(64k) mod P for the words of one, and of two */

/* a * b mod P of reflected values. */
static uint32_t crc32c_multiply(uint32_t a, uint32_t b) {
    uint32_t product = 0;
    for (int bit = 31; bit >= 0; bit--) {
        if (b >> bit & 1) product ^= a;
        a = a >> 1 ^ (a & 1 ? 0x82F63B78u : 0);
    }
    return product;
}

__attribute__((target(CRC32C_ARM_TARGET))) static uint32_t crc32c_arm(uint32_t first, const uint8_t *data, size_t size) {
    const size_t words = CRC32C_STREAM_WORDS;
    for (; size >= 24 * words; size -= 24 * words) {
        const uint8_t *end = data + 8 * words;
        uint32_t second = 0, third = 0;
        for (; data < end; data += 8) {
            first = __crc32cd(first, load_le64(data));
            second = __crc32cd(second, load_le64(data + 8 * words));
            third = __crc32cd(third, load_le64(data + 16 * words));
        }
        first = third ^ crc32c_multiply(first, crc32c_two_streams) ^ crc32c_multiply(second, crc32c_one_stream);
        data += 16 * words;
    }
    for (; size >= 8; data += 8, size -= 8) first = __crc32cd(first, load_le64(data));
    for (; size; data++, size--) first = __crc32cb(first, *data);
    return first;
}

static void crc32c_choose(void) {
    static const uint8_t zeros[8];
    uint32_t factor = 0x80000000u; /* x^0 */
    for (int k = 1; k <= 2 * CRC32C_STREAM_WORDS; k++) {
        factor = crc32c_by_tables(factor, zeros, 8);
        if (k == CRC32C_STREAM_WORDS) crc32c_one_stream = factor;
    }
    crc32c_two_streams = factor;
#ifdef __linux__
    if (!(getauxval(AT_HWCAP) & HWCAP_CRC32)) return;
#endif
    crc32c_chosen = crc32c_arm;
    crc32c_name = "armv8";
}
#endif

/* Choose the function for this CPU; called once, when the module is imported. */
static void crc32c_init(void) {
    crc32c_make_tables();
    crc32c_chosen = crc32c_by_tables;
    crc32c_name = "tables";
#if defined(CRC32C_X86) || defined(CRC32C_ARM)
    crc32c_choose();
#endif
}

/* CRC-32C of the bytes, continuing from that of the bytes before (0 at the beginning). */
static inline uint32_t crc32c_extend(uint32_t crc, const uint8_t *data, size_t size) {
    return ~crc32c_chosen(~crc, data, size);
}

/* Masked, as stored in TFRecord files. */
static inline uint32_t crc32c_masked(const uint8_t *data, size_t size) {
    uint32_t crc = crc32c_extend(0, data, size);
    return (crc >> 15 | crc << 17) + 0xA282EAD8u;
}

#endif
