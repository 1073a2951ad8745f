/* The sums of spec.md over elements that lie densely in memory: constants, mixers, widening, vector loops.
 *
 * Bits are moved as integers: a thread may run with denormals flushed to zero, and loading a signalling NaN must not quiet
 * it. Little-endian hosts only; native.py refuses others.
 */
#include <stdint.h>
#include <string.h>

typedef uint64_t u64;
typedef uint32_t u32;

#define POSITION 0x9E3779B97F4A7C15ull /* C of spec.md */
#define SPREAD 0xD6E8FEB86659FD93ull   /* K1 */
#define OFFSET 0xA0761D6478BD642Full   /* K0 */
#define FEED 0x85EBCA6B00000001ull     /* K2 */
#define SCATTER 0x0000000085EBCA77ull  /* N */
#define FOLD 0xC2B2AE3D27D4EB4Full     /* F */
#define LOW32 0xFFFFFFFFull

/* How one component widens; the numbers are Widening in dtypes.py. */
enum { U8, I8, U16, I16, U32, I32, B64, F32, BF16, F16, TABLE8 };

enum {
    BLOCK = 1024, /* components widened at a time: stays in the first-level cache */
    LANE = 8,
    LANE_FOLD = 29,
    MAX_DIMS = 24
};

/* Mirrors native.Plan field by field. Strides are in bytes, dimensions outermost first, already merged where possible. */
typedef struct {
    int32_t widening;
    int32_t item_bytes;      /* one element */
    int32_t component_bytes; /* item_bytes, or half of it for complex */
    int32_t num_dims;
    int64_t numel;
    u64 flip[2];             /* XORed into every 16 logical bytes: how conjugate and negative views read */
    const u32 *table;        /* 256 words for TABLE8 */
    int64_t shape[MAX_DIMS];
    int64_t strides[MAX_DIMS];
} Plan;

typedef struct {
    const Plan *plan;
    u64 mix, value, bag, xor64;
    u64 first[2]; /* the first element, repeated to 16 bytes */
    int differs;  /* some element is not the first one */
} Sums;

static inline u64 load64(const unsigned char *p) {
    u64 w;
    memcpy(&w, p, 8);
    return w;
}

static inline int has_flip(const Plan *plan) { return (plan->flip[0] | plan->flip[1]) != 0; }

static inline int64_t lane_elements(const Plan *plan) { return plan->item_bytes < LANE ? LANE / plan->item_bytes : 1; }

static inline u64 spread(u64 x) {
    x ^= x >> 32;
    x *= FEED;
    return x ^ (x >> 32);
}

static inline u64 mix_lane(u64 x) { return spread((x ^ (x >> LANE_FOLD)) * SPREAD); }

static inline u64 mix_element(u64 x) { return spread((x ^ (x >> 32)) * SPREAD + OFFSET); }

/* binary16 bits to binary32 bits, NaN payload kept. A subnormal is a small integer times 2^-24, which converts exactly
 * whatever the rounding and flushing modes are. No branches, so that the loop over it vectorises. */
static inline u32 widen_f16(uint16_t h) {
    u32 magnitude = h & 0x7FFFu, sign = (u32)(h & 0x8000u) << 16, bits;
    float exact = (float)(int32_t)magnitude;
    memcpy(&bits, &exact, 4);
    u32 is_special = 0u - (u32)(magnitude >= 0x7C00u);
    u32 is_subnormal = 0u - (u32)(magnitude < 0x0400u);
    u32 is_nonzero = 0u - (u32)(magnitude != 0);
    u32 normal = ((magnitude << 13) + (112u << 23)) | (is_special & 0x7F800000u);
    u32 subnormal = (bits - (24u << 23)) & is_nonzero;
    return sign | (normal & ~is_subnormal) | (subnormal & is_subnormal);
}

#define WIDEN(TYPE, WORD, EXPRESSION)                   \
    for (int k = 0; k < count; k++) {                   \
        TYPE c;                                         \
        memcpy(&c, p + (size_t)k * sizeof c, sizeof c); \
        words[k] = (WORD)(EXPRESSION);                  \
    }                                                   \
    break

static void widen_wide(const Plan *plan, const unsigned char *restrict p, int count, u64 *restrict words) {
    switch (plan->widening) {
    case U8: WIDEN(uint8_t, u64, c);
    case I8: WIDEN(int8_t, u64, (int64_t)c);
    case U16: WIDEN(uint16_t, u64, c);
    case I16: WIDEN(int16_t, u64, (int64_t)c);
    case U32: WIDEN(u32, u64, c);
    case I32: WIDEN(int32_t, u64, (int64_t)c);
    default: memcpy(words, p, (size_t)count * 8);
    }
}

static void widen_narrow(const Plan *plan, const unsigned char *restrict p, int count, u32 *restrict words) {
    switch (plan->widening) {
    case F32: memcpy(words, p, (size_t)count * 4); break;
    case BF16: WIDEN(uint16_t, u32, (u32)c << 16);
    case F16: WIDEN(uint16_t, u32, widen_f16(c));
    default: WIDEN(uint8_t, u32, plan->table[c]);
    }
}

/* Compilers turn the three loops below into good AVX-512 (which multiplies 64-bit words) by themselves. With AVX2 they emulate
 * every multiplication in full, where most need one instruction: three times as fast on float32, measured. */
#if defined(__AVX2__) && !defined(__AVX512DQ__)
#include <immintrin.h>
#define FOUR_AT_A_TIME 1

static inline __m256i fold4(__m256i x) { return _mm256_xor_si256(x, _mm256_srli_epi64(x, 32)); }

static inline __m256i words4(u64 w) { return _mm256_set1_epi64x((long long)w); }

static inline __m256i spread4(__m256i x) {
    x = fold4(x);
    __m256i feed = _mm256_mul_epu32(x, words4(FEED >> 32));
    return fold4(_mm256_add_epi64(x, _mm256_slli_epi64(feed, 32)));
}

static inline __m256i times_spread4(__m256i x) {
    __m256i low = words4(SPREAD & LOW32), high = words4(SPREAD >> 32);
    __m256i cross = _mm256_add_epi64(_mm256_mul_epu32(_mm256_srli_epi64(x, 32), low), _mm256_mul_epu32(x, high));
    return _mm256_add_epi64(_mm256_mul_epu32(x, low), _mm256_slli_epi64(cross, 32));
}

static inline __m256i mix_lane4(__m256i x) { return spread4(times_spread4(_mm256_xor_si256(x, _mm256_srli_epi64(x, LANE_FOLD)))); }

static inline __m256i mix_element4(__m256i x) { return spread4(_mm256_add_epi64(times_spread4(fold4(x)), words4(OFFSET))); }

static inline __m256i positions4(u64 p) {
    return _mm256_set_epi64x((long long)(p + 3 * POSITION), (long long)(p + 2 * POSITION), (long long)(p + POSITION), (long long)p);
}

static inline __m256i load4(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }

static inline u64 add4(__m256i x) {
    u64 part[4];
    _mm256_storeu_si256((__m256i *)part, x);
    return part[0] + part[1] + part[2] + part[3];
}
#endif

static void hash_wide(Sums *s, const u64 *words, int count, u64 first) {
    u64 bag = 0, value = 0, position = POSITION * (first + 1);
    int k = 0;
#ifdef FOUR_AT_A_TIME
    __m256i bags = _mm256_setzero_si256(), values = bags, positions = positions4(position);
    for (; k + 4 <= count; k += 4) {
        __m256i h = mix_element4(load4(words + k)), t = _mm256_xor_si256(h, positions);
        bags = _mm256_add_epi64(bags, h);
        values = _mm256_add_epi64(values, _mm256_mul_epu32(t, _mm256_srli_epi64(t, 32)));
        positions = _mm256_add_epi64(positions, words4(4 * POSITION));
    }
    bag = add4(bags), value = add4(values);
#endif
    for (; k < count; k++) {
        u64 h = mix_element(words[k]);
        u64 t = h ^ (position + POSITION * (u64)k);
        bag += h;
        value += (t & LOW32) * (t >> 32);
    }
    s->bag += bag;
    s->value += value;
}

/* Each 64-bit word of `pairs` holds two narrow words, the first one low. */
static void hash_narrow(Sums *s, const unsigned char *pairs, int count, u64 first) {
    u64 bag = 0, value = 0, position = POSITION * (first + 1);
    int k = 0;
#ifdef FOUR_AT_A_TIME
    __m256i bags = _mm256_setzero_si256(), values = bags, positions = positions4(position);
    for (; k + 4 <= count; k += 4) {
        __m256i w = load4(pairs + 8 * k);
        __m256i x0 = _mm256_add_epi64(_mm256_mul_epu32(w, words4(SCATTER)), words4(OFFSET));
        __m256i x1 = _mm256_add_epi64(_mm256_mul_epu32(_mm256_srli_epi64(w, 32), words4(SCATTER)), words4(OFFSET));
        __m256i b0 = fold4(x0), b1 = fold4(x1); /* a multiplication and a 32-bit addition look at the low halves only */
        bags = _mm256_add_epi64(bags, _mm256_add_epi64(_mm256_mul_epu32(x0, b0), _mm256_mul_epu32(x1, b1)));
        __m256i left = _mm256_add_epi32(_mm256_add_epi32(x0, b1), positions);
        __m256i right = _mm256_add_epi32(_mm256_sub_epi32(x1, b0), _mm256_srli_epi64(positions, 32));
        values = _mm256_add_epi64(values, _mm256_mul_epu32(left, right));
        positions = _mm256_add_epi64(positions, words4(4 * POSITION));
    }
    bag = add4(bags), value = add4(values);
#endif
    for (; k < count; k++) {
        u64 w = load64(pairs + 8 * k), p = position + POSITION * (u64)k;
        u64 x0 = (w & LOW32) * SCATTER + OFFSET, x1 = (w >> 32) * SCATTER + OFFSET;
        u64 a0 = x0 & LOW32, b0 = a0 ^ (x0 >> 32), a1 = x1 & LOW32, b1 = a1 ^ (x1 >> 32);
        bag += a0 * b0 + a1 * b1;
        value += ((a0 + b1 + p) & LOW32) * ((a1 - b0 + (p >> 32)) & LOW32);
    }
    s->bag += bag;
    s->value += value;
}

static void hash_lanes(Sums *s, const unsigned char *p, int count, u64 first) {
    u64 mix = 0, x = 0, position = POSITION * (first + 1);
    int k = 0;
#ifdef FOUR_AT_A_TIME
    __m256i mixes = _mm256_setzero_si256(), xors = mixes, positions = positions4(position);
    for (; k + 4 <= count; k += 4) {
        __m256i w = load4(p + 8 * k);
        mixes = _mm256_add_epi64(mixes, mix_lane4(_mm256_add_epi64(w, positions)));
        xors = _mm256_xor_si256(xors, w);
        positions = _mm256_add_epi64(positions, words4(4 * POSITION));
    }
    u64 words[4];
    _mm256_storeu_si256((__m256i *)words, xors);
    mix = add4(mixes), x = words[0] ^ words[1] ^ words[2] ^ words[3];
#endif
    for (; k < count; k++) {
        u64 w = load64(p + 8 * k);
        mix += mix_lane(w + position + POSITION * (u64)k);
        x ^= w;
    }
    s->mix += mix;
    s->xor64 ^= x;
}

static int same_as_first(const Sums *s, const unsigned char *p, int64_t bytes) {
    u64 difference = 0;
    int64_t pairs = bytes / 16;
    for (int64_t k = 0; k < pairs; k++) {
        difference |= load64(p + 16 * k) ^ s->first[0];
        difference |= load64(p + 16 * k + 8) ^ s->first[1];
    }
    return !difference && !memcmp(p + 16 * pairs, s->first, (size_t)(bytes - 16 * pairs));
}

static void wide(Sums *s, const unsigned char *p, int count, u64 first) {
    u64 words[BLOCK];
    if (s->plan->widening == B64 && !((uintptr_t)p & 7)) {
        hash_wide(s, (const u64 *)p, count, first);
        return;
    }
    widen_wide(s->plan, p, count, words);
    hash_wide(s, words, count, first);
}

/* `first` is even: a lane holds at least one pair of them, or, for float32, is one. */
static void narrow(Sums *s, const unsigned char *p, int count, u64 first) {
    u32 words[BLOCK + 1];
    if (s->plan->widening == F32 && count % 2 == 0) {
        hash_narrow(s, p, count / 2, first / 2);
        return;
    }
    widen_narrow(s->plan, p, count, words);
    words[count] = 0;
    hash_narrow(s, (const unsigned char *)words, (count + 1) / 2, first / 2);
    if (count % 2) s->bag -= (OFFSET & LOW32) * ((OFFSET & LOW32) ^ (OFFSET >> 32)); /* the zero fills up a pair, it is no element */
}

/* `elements` elements that lie densely at p and start at element `first`, on a lane boundary. */
static void segment(Sums *s, const unsigned char *p, int64_t first, int64_t elements) {
    const Plan *plan = s->plan;
    int64_t scale = plan->item_bytes / plan->component_bytes;
    int64_t component = first * scale, left = elements * scale;
    while (left > 0) {
        int count = left < BLOCK ? (int)left : BLOCK;
        int64_t bytes = (int64_t)count * plan->component_bytes;
        int lanes = (int)(bytes / 8);
        u64 lane = (u64)component * (u64)plan->component_bytes / 8;
        hash_lanes(s, p, lanes, lane);
        if (bytes & 7) {
            unsigned char last[8] = {0};
            memcpy(last, p + 8 * lanes, (size_t)(bytes & 7));
            hash_lanes(s, last, 1, lane + (u64)lanes);
        }
        if (plan->widening >= F32)
            narrow(s, p, count, (u64)component);
        else
            wide(s, p, count, (u64)component);
        if (!s->differs) s->differs = !same_as_first(s, p, bytes);
        p += bytes;
        component += count;
        left -= count;
    }
}
