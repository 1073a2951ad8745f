/* One pass over a tensor's logical bytes: the fast CPU twin of spec.md.
 *
 * Built at first use by the system compiler (native.py), called through ctypes. The sums of spec.md commute, so any part
 * may be done in any order as long as no 8-byte lane is split: every path below cuts the tensor into segments that start
 * on a lane boundary, and only the last segment may end inside a lane. Buffers live on the stack, 64 KiB at most.
 *
 * Integer arithmetic only: a thread may run with denormals flushed to zero, and loading a signalling NaN must not quiet it.
 * Little-endian hosts only; native.py refuses others.
 */
#include <stdint.h>
#include <string.h>

typedef uint64_t u64;
typedef uint32_t u32;

#define POSITION 0x9E3779B97F4A7C15ull /* C of spec.md */
#define SPREAD 0xD6E8FEB86659FD93ull   /* K1 */
#define FEED 0x85EBCA6B00000001ull     /* K2 */
#define FOLD 0xC2B2AE3D27D4EB4Full     /* F */
#define LOW32 0xFFFFFFFFull

/* How one component widens; the numbers are Widening in dtypes.py. */
enum { U8, I8, U16, I16, U32, I32, B64, BF16, F16, TABLE8 };

enum { BLOCK = 1024, GATHER_BYTES = 32768, IN_PLACE_BYTES = 2048, MAX_DIMS = 64 };

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

static inline u64 mixer(u64 x) {
    x ^= x >> 32;
    x *= SPREAD;
    x ^= x >> 32;
    x *= FEED;
    return x ^ (x >> 32);
}

/* binary16 bits to binary32 bits, NaN payload kept. A subnormal is an exact small integer times 2^-24. */
static inline u32 widen_f16(uint16_t h) {
    u32 magnitude = h & 0x7FFFu, sign = (u32)(h & 0x8000u) << 16;
    float exact = (float)(int32_t)magnitude;
    u32 subnormal, normal = (magnitude << 13) + (112u << 23);
    memcpy(&subnormal, &exact, 4);
    subnormal = magnitude ? subnormal - (24u << 23) : 0;
    u32 special = (magnitude << 13) | 0x7F800000u;
    return sign | (magnitude >= 0x7C00u ? special : magnitude < 0x0400u ? subnormal : normal);
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

static void hash_elements(Sums *s, const u64 *wide, int count, u64 first) {
    u64 bag = 0, value = 0, position = POSITION * (first + 1);
    for (int k = 0; k < count; k++) {
        u64 h = mixer(wide[k]);
        u64 t = h ^ (position + POSITION * (u64)k);
        bag += h;
        value += (t & LOW32) * (t >> 32);
    }
    s->bag += bag;
    s->value += value;
}

static void hash_lanes(Sums *s, const unsigned char *p, int64_t lanes, u64 first) {
    u64 mix = 0, x = 0, position = POSITION * (first + 1);
    for (int64_t k = 0; k < lanes; k++) {
        u64 w = load64(p + 8 * k);
        mix += mixer(w + position + POSITION * (u64)k);
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
        int64_t bytes = (int64_t)count * plan->component_bytes, lanes = bytes / 8;
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

typedef struct { u64 half[2]; } Pair;

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

static void flush(Sums *s, unsigned char *buffer, int64_t *done, int64_t *held) {
    if (s->plan->flip[0] | s->plan->flip[1]) flip(s->plan, buffer, *held * s->plan->item_bytes);
    segment(s, buffer, *done, *held);
    *done += *held, *held = 0;
}

/* Logical order. Long dense runs are read in place, only the lanes that span two of them are assembled; all else goes
 * through the buffer. The outer dimensions are walked like an odometer. */
static void walk_rows(Sums *s, const unsigned char *base) {
    const Plan *plan = s->plan;
    int inner = plan->num_dims - 1, size = plan->item_bytes;
    int64_t run = plan->shape[inner], stride = plan->strides[inner], per_lane = size < 8 ? 8 / size : 1;
    int64_t index[MAX_DIMS] = {0}, rows = plan->numel / run, done = 0, held = 0;
    int in_place = stride == size && !(plan->flip[0] | plan->flip[1]) && run * size >= IN_PLACE_BYTES;
    int64_t capacity = in_place ? per_lane : GATHER_BYTES / size;
    unsigned char buffer[GATHER_BYTES];
    const unsigned char *row = base;
    for (int64_t r = 0; r < rows; r++) {
        const unsigned char *p = row;
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
                if (held == capacity) flush(s, buffer, &done, &held);
            }
            p += part * stride, left -= part;
        }
        for (int d = inner - 1; d >= 0; d--) {
            row += plan->strides[d];
            if (++index[d] < plan->shape[d]) break;
            row -= plan->strides[d] * plan->shape[d];
            index[d] = 0;
        }
    }
    if (held) flush(s, buffer, &done, &held);
}

int opguard_fingerprint_abi(void) { return 1; }

/* Fill out[6] = mix64, value64, bag64, xor32, trivial, nbytes. */
void opguard_fingerprint(const unsigned char *base, const Plan *plan, u64 *out) {
    Sums s = {plan, 0, 0, 0, 0, {0, 0}, 0};
    u64 nbytes = (u64)plan->numel * (u64)plan->item_bytes;
    u64 components = nbytes / (u64)plan->component_bytes;
    if (plan->numel) {
        unsigned char *first = (unsigned char *)s.first;
        for (int k = 0; k < 16; k += plan->item_bytes) memcpy(first + k, base, (size_t)plan->item_bytes);
        flip(plan, first, 16);
        if (plan->num_dims == 0)
            segment(&s, first, 0, 1);
        else
            walk_rows(&s, base);
    }
    out[0] = mixer(s.mix + FOLD * (nbytes + 1));
    out[1] = mixer(s.value + FOLD * (components + 1));
    out[2] = mixer(s.bag + FOLD * (components + 1));
    out[3] = (s.xor64 ^ (s.xor64 >> 32)) & LOW32;
    out[4] = plan->numel <= 2 || !s.differs;
    out[5] = nbytes;
}
