/* One pass over a tensor's logical bytes: the fast CPU twin of spec.md.
 *
 * Built at first use by the system compiler (native.py), called through ctypes. The sums of spec.md commute, so any part
 * may be done in any order as long as no 8-byte lane is split: every path below cuts the tensor into segments that start
 * on a lane boundary, and only the very last segment may end inside a lane. Buffers are fixed and per thread.
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
#define FOLD 0xC2B2AE3D27D4EB4Full     /* F */
#define LOW32 0xFFFFFFFFull

/* How one component widens; the numbers are Widening in dtypes.py. */
enum { U8, I8, U16, I16, U32, I32, B64, BF16, F16, TABLE8 };

enum {
    BLOCK = 1024,          /* components widened at a time: stays in the first-level cache */
    GATHER_BYTES = 32768,
    IN_PLACE_BYTES = 2048, /* shorter dense runs are cheaper to copy together than to hash one by one */
    TILE_COLUMNS = 256,
    TILE_ROW_BYTES = 128,  /* two cache lines of every column visited */
    TILE_MIN_COLUMNS = 32,
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

#define WIDEN(TYPE, EXPRESSION)                    \
    for (int k = 0; k < count; k++) {              \
        TYPE c;                                    \
        memcpy(&c, p + (size_t)k * sizeof c, sizeof c); \
        wide[k] = (u64)(EXPRESSION);               \
    }                                              \
    break

static void widen(const Plan *plan, const unsigned char *restrict p, int count, u64 *restrict wide) {
    switch (plan->widening) {
    case U8: WIDEN(uint8_t, c);
    case I8: WIDEN(int8_t, (int64_t)c);
    case U16: WIDEN(uint16_t, c);
    case I16: WIDEN(int16_t, (int64_t)c);
    case U32: WIDEN(u32, c);
    case I32: WIDEN(int32_t, (int64_t)c);
    case B64: memcpy(wide, p, (size_t)count * 8); break;
    case BF16: WIDEN(uint16_t, (u32)c << 16);
    case F16: WIDEN(uint16_t, widen_f16(c));
    default: WIDEN(uint8_t, plan->table[c]);
    }
}

/* Compilers turn the two loops below into good AVX-512 (which multiplies 64-bit words) by themselves. With AVX2 they emulate
 * all three multiplications in full; two of them need one instruction. 1.7x on float32, measured. */
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

static void hash_elements(Sums *s, const u64 *wide, int count, u64 first) {
    u64 bag = 0, value = 0, position = POSITION * (first + 1);
    int k = 0;
#ifdef FOUR_AT_A_TIME
    __m256i bags = _mm256_setzero_si256(), values = bags, positions = positions4(position);
    for (; k + 4 <= count; k += 4) {
        __m256i h = mix_element4(load4(wide + k)), t = _mm256_xor_si256(h, positions);
        bags = _mm256_add_epi64(bags, h);
        values = _mm256_add_epi64(values, _mm256_mul_epu32(t, _mm256_srli_epi64(t, 32)));
        positions = _mm256_add_epi64(positions, words4(4 * POSITION));
    }
    bag = add4(bags), value = add4(values);
#endif
    for (; k < count; k++) {
        u64 h = mix_element(wide[k]);
        u64 t = h ^ (position + POSITION * (u64)k);
        bag += h;
        value += (t & LOW32) * (t >> 32);
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

/* `elements` elements that lie densely at p and start at element `first`, on a lane boundary. */
static void segment(Sums *s, const unsigned char *p, int64_t first, int64_t elements) {
    const Plan *plan = s->plan;
    int64_t scale = plan->item_bytes / plan->component_bytes;
    int64_t component = first * scale, left = elements * scale;
    u64 wide[BLOCK];
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
        if (plan->widening == B64 && !((uintptr_t)p & 7)) {
            hash_elements(s, (const u64 *)p, count, (u64)component);
        } else {
            widen(plan, p, count, wide);
            hash_elements(s, wide, count, (u64)component);
        }
        if (!s->differs) s->differs = !same_as_first(s, p, bytes);
        p += bytes;
        component += count;
        left -= count;
    }
}

static void flip(const Plan *plan, unsigned char *p, int64_t bytes) {
    const unsigned char *mask = (const unsigned char *)plan->flip;
    for (int64_t k = 0; k < bytes; k++) p[k] ^= mask[k & 15];
}

#define COPY(TYPE)                                                  \
    for (int64_t k = 0; k < count; k++) {                           \
        TYPE c;                                                     \
        memcpy(&c, from + k * stride, sizeof c);                    \
        memcpy(to + k * step, &c, sizeof c);                        \
    }                                                               \
    break

typedef struct {
    u64 half[2];
} Pair;

static _Thread_local unsigned char scratch[TILE_ROW_BYTES * (TILE_COLUMNS + LANE)];

/* `count` elements, `stride` bytes apart, to places `step` bytes apart. */
static void copy_strided(unsigned char *restrict to, int64_t step, const unsigned char *restrict from, int64_t stride,
                         int64_t count, int item_bytes) {
    if (stride == item_bytes && step == item_bytes) {
        memcpy(to, from, (size_t)(count * item_bytes));
        return;
    }
    switch (item_bytes) {
    case 1: COPY(uint8_t);
    case 2: COPY(uint16_t);
    case 4: COPY(u32);
    case 8: COPY(u64);
    default: COPY(Pair);
    }
}

/* Step an odometer over dimensions [0, dims) and return the new place. */
static const unsigned char *step(const Plan *plan, int dims, int64_t *index, const unsigned char *place) {
    for (int d = dims - 1; d >= 0; d--) {
        place += plan->strides[d];
        if (++index[d] < plan->shape[d]) break;
        place -= plan->strides[d] * plan->shape[d];
        index[d] = 0;
    }
    return place;
}

/* Logical order. Long dense runs are read in place, only the lanes that span two of them are assembled; all else goes
 * through the buffer. */
static void walk_rows(Sums *s, const unsigned char *base) {
    const Plan *plan = s->plan;
    int inner = plan->num_dims - 1, size = plan->item_bytes, flips = has_flip(plan);
    int64_t run = plan->shape[inner], stride = plan->strides[inner], per_lane = lane_elements(plan);
    int64_t index[MAX_DIMS] = {0}, rows = plan->numel / run, done = 0, held = 0;
    int in_place = stride == size && !flips && (rows == 1 || run * size >= IN_PLACE_BYTES);
    int64_t capacity = in_place ? per_lane : GATHER_BYTES / size;
    unsigned char *buffer = scratch;
    for (int64_t r = 0; r < rows; r++) {
        const unsigned char *p = base;
        int64_t left = run;
        while (left > 0) {
            int64_t part;
            if (in_place && !held && left >= per_lane) {
                part = r + 1 == rows ? left : left / per_lane * per_lane;
                segment(s, p, done, part);
                done += part;
            } else {
                part = capacity - held < left ? capacity - held : left;
                copy_strided(buffer + held * size, size, p, stride, part, size);
                held += part;
            }
            if (held == capacity || (held && r + 1 == rows && part == left)) {
                if (flips) flip(plan, buffer, held * size);
                segment(s, buffer, done, held);
                done += held, held = 0;
            }
            p += part * stride, left -= part;
        }
        base = step(plan, inner, index, base);
    }
}

/* Element `first` and the few after it, wherever they lie: the lanes that span two rows of a transposed matrix. */
static void gather_lane(Sums *s, const unsigned char *base, int64_t first, int64_t count) {
    const Plan *plan = s->plan;
    unsigned char lane[LANE];
    for (int64_t k = 0; k < count; k++) {
        const unsigned char *p = base;
        int64_t rest = first + k;
        for (int d = plan->num_dims - 1; d >= 0; d--) {
            p += rest % plan->shape[d] * plan->strides[d];
            rest /= plan->shape[d];
        }
        memcpy(lane + k * plan->item_bytes, p, (size_t)plan->item_bytes);
    }
    if (has_flip(plan)) flip(plan, lane, count * plan->item_bytes);
    segment(s, lane, first, count);
}

/* A matrix (or a stack of them) whose logical rows run across memory: read memory rows in strips of TILE_ROW_BYTES, turn
 * them in the buffer, hash the logical rows of the tile. Rows of odd length begin inside a lane: each row's part of a tile
 * starts at the row's first whole lane, and the lanes that span rows are gathered at the end. */
static void walk_tiles(Sums *s, const unsigned char *base) {
    const Plan *plan = s->plan;
    int inner = plan->num_dims - 1, size = plan->item_bytes;
    int64_t columns = plan->shape[inner], rows = plan->shape[inner - 1], stride = plan->strides[inner];
    int64_t per_lane = lane_elements(plan), planes = plan->numel / (rows * columns), strip = TILE_ROW_BYTES / size;
    int64_t index[MAX_DIMS] = {0}, pitch = (TILE_COLUMNS + per_lane) * size;
    const unsigned char *plane = base;
    for (int64_t n = 0; n < planes; n++) {
        for (int64_t top = 0; top < rows; top += strip) {
            int64_t height = rows - top < strip ? rows - top : strip;
            for (int64_t from = 0; from < columns; from += TILE_COLUMNS) {
                int64_t width = columns - from < TILE_COLUMNS + per_lane ? columns - from : TILE_COLUMNS + per_lane;
                for (int64_t c = 0; c < width; c++)
                    copy_strided(scratch + c * size, pitch, plane + (from + c) * stride + top * size, size, height, size);
                for (int64_t r = 0; r < height; r++) {
                    int64_t row = n * rows + top + r, start = row * columns, skip = (per_lane - start % per_lane) % per_lane;
                    int64_t end = from + TILE_COLUMNS + skip;
                    if (end >= columns) end = row + 1 == planes * rows ? columns : columns - (start + columns) % per_lane;
                    unsigned char *p = scratch + r * pitch + skip * size;
                    if (end <= from + skip) continue;
                    if (has_flip(plan)) flip(plan, p, (end - from - skip) * size);
                    segment(s, p, start + from + skip, end - from - skip);
                }
            }
        }
        plane = step(plan, inner - 1, index, plane);
    }
    for (int64_t boundary = columns; boundary < plan->numel; boundary += columns) {
        int64_t first = boundary - boundary % per_lane;
        if (first < boundary) gather_lane(s, base, first, per_lane);
    }
}

int64_t opguard_fingerprint_plan_bytes(void) { return (int64_t)sizeof(Plan); }

/* exchange[0] holds the address of the first element; all six are replaced by mix64, value64, bag64, xor32, trivial, nbytes. */
void opguard_fingerprint(const Plan *plan, u64 *exchange) {
    const unsigned char *base = (const unsigned char *)(uintptr_t)exchange[0];
    Sums s = {plan, 0, 0, 0, 0, {0, 0}, 0};
    u64 nbytes = (u64)plan->numel * (u64)plan->item_bytes, components = nbytes / (u64)plan->component_bytes;
    if (plan->numel) {
        unsigned char *first = (unsigned char *)s.first;
        int inner = plan->num_dims - 1;
        for (int k = 0; k < 16; k += plan->item_bytes) memcpy(first + k, base, (size_t)plan->item_bytes);
        if (has_flip(plan)) flip(plan, first, 16);
        if (inner < 0)
            segment(&s, first, 0, 1);
        else if (inner && plan->strides[inner] != plan->item_bytes && plan->strides[inner - 1] == plan->item_bytes &&
                 plan->shape[inner] >= TILE_MIN_COLUMNS)
            walk_tiles(&s, base);
        else
            walk_rows(&s, base);
    }
    exchange[0] = mix_lane(s.mix + FOLD * (nbytes + 1));
    exchange[1] = mix_lane(s.value + FOLD * (components + 1));
    exchange[2] = mix_lane(s.bag + FOLD * (components + 1));
    exchange[3] = (s.xor64 ^ (s.xor64 >> 32)) & LOW32;
    exchange[4] = plan->numel <= 2 || !s.differs;
    exchange[5] = nbytes;
}
