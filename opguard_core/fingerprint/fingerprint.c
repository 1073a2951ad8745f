/* One pass over a tensor's logical bytes: the fast CPU twin of spec.md, for any strides.
 *
 * Built at first use by the system compiler (native.py), called through ctypes. The sums of spec.md commute, so any part
 * may be done in any order as long as no 8-byte lane is split: every path below cuts the tensor into segments that start
 * on a lane boundary, and only the very last segment may end inside a lane. Buffers are fixed and per thread.
 */
#include "dense.h"

enum {
    GATHER_BYTES = 32768,
    IN_PLACE_BYTES = 2048, /* shorter dense runs are cheaper to copy together than to hash one by one */
    TILE_COLUMNS = 256,
    TILE_ROW_BYTES = 256,  /* four cache lines of every column visited */
    TILE_MIN_COLUMNS = 32
};

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

/* As above for n arrays, each with a plan and six words of its own. */
void opguard_fingerprint_many(const Plan *const *plans, u64 *exchange, int64_t n) {
    for (int64_t k = 0; k < n; k++) opguard_fingerprint(plans[k], exchange + 6 * k);
}
