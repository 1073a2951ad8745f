/* Views to the parameter of one launch: merges dimensions, chooses how each view is read, the grid and the kernel. Plain C, host.
 *
 * Cost: about 0.1 us a contiguous view; allocates nothing, has no state, callable from any thread.
 */
#ifndef OPGUARD_PLAN_H
#define OPGUARD_PLAN_H

#include "probe_api.h"

#include <string.h>

enum {
    OG_TILE_MIN_BYTES = 32,      /* a transposed view narrower than this is gathered */
    OG_DENSE_LOAD = 4,           /* time a byte takes, against one another */
    OG_ROWS_LOAD = 5,
    OG_TILES_LOAD = 7,
    OG_GATHER_LOAD = 16,
    OG_MAX_ROW_DIMS = 4,         /* of a view that is read by rows */
    OG_GRID_TRIES = 5            /* to have all blocks of a launch resident at a time */
};

typedef struct {
    union {
        og_launch_few few;
        og_launch_many many;
    } launch;               /* the kernel's one parameter, by value */
    uint32_t kernel;        /* index into OG_KERNELS */
    uint32_t grid;          /* blocks of OG_THREADS threads */
    uint32_t num_views;     /* taken from the front of `views`: at least one */
    uint32_t num_segments;  /* records that the launch will deliver; scratch it needs: OG_SCRATCH_BYTES(num_segments) if grid > 1 */
    uint32_t launch_bytes;  /* of the parameter */
} og_planned;

#define OG_NUM_KERNELS 12
static const char *const OG_KERNELS[OG_NUM_KERNELS] = {
    "og_all_few", "og_all_many", "og_alls_few", "og_alls_many", "og_bag_few", "og_bag_many",
    "og_bags_few", "og_bags_many", "og_mix_few", "og_mix_many", "og_mixs_few", "og_mixs_many",
};

static inline uint32_t og_component_bytes(int32_t widening) {
    switch (widening) {
    case OG_U16: case OG_I16: case OG_BF16: case OG_F16: return 2;
    case OG_U32: case OG_I32: case OG_F32: return 4;
    case OG_B64: case OG_F64: case OG_I64: return 8;
    default: return 1;
    }
}

/* Why a view cannot be read; NULL if it can. */
static inline const char *og_view_problem(const og_view *view) {
    if (view->widening < 0 || view->widening >= OG_NUM_WIDENINGS) return "unknown widening";
    uint32_t component = og_component_bytes(view->widening);
    if ((uint32_t)view->item_bytes != component && (uint32_t)view->item_bytes != 2 * component) return "item size does not fit the widening";
    if (view->num_dims < 0 || view->num_dims > OG_MAX_DIMS) return "too many dimensions";
    if (view->numel < 0) return "negative number of elements";
    if (view->numel && !view->data) return "null address";
    int64_t numel = 1;
    for (int d = 0; d < view->num_dims; d++) numel *= view->sizes[d];
    if (numel != view->numel) return "number of elements does not fit the sizes";
    return 0;
}

/* Dimensions of length one dropped, neighbours that are dense in one another joined (layout.py); their number. */
static inline int og_merge(const og_view *view, og_dim *dims) {
    int n = 0;
    for (int d = 0; d < view->num_dims; d++) {
        uint64_t size = (uint64_t)view->sizes[d];
        if (size == 1) continue;
        if (n && dims[n - 1].stride == view->strides[d] * view->sizes[d]) {
            dims[n - 1].size *= size;
            dims[n - 1].stride = view->strides[d];
        } else {
            dims[n].size = size;
            dims[n++].stride = view->strides[d];
        }
    }
    for (int d = 0; d < n; d++) dims[d].reciprocal = ~0ull / dims[d].size + 1;
    return n;
}

/* The path of a view of merged dimensions. */
static inline int og_path(const og_view *view, const og_dim *dims, int n, int regions, uint32_t statistics) {
    int flips = (view->flip[0] | view->flip[1]) != 0;
    int64_t item = view->item_bytes;
    if (!flips && (n == 0 || (n == 1 && dims[0].stride == item))) return OG_DENSE;
    if (regions > 1 || statistics || n < 2) return OG_GATHER;
    uint64_t row_bytes = dims[n - 1].size * (uint64_t)item;
    if (dims[n - 1].stride == item) {
        uint64_t begins = view->data | row_bytes;
        for (int d = 0; d < n - 1; d++) begins |= (uint64_t)dims[d].stride;
        int is_small = n <= OG_MAX_ROW_DIMS && (uint64_t)view->numel * (uint64_t)item < (uint64_t)1 << 35;
        return !flips && !(begins & 15) && is_small ? OG_ROWS : OG_GATHER;
    }
    if (row_bytes < OG_TILE_MIN_BYTES) return OG_GATHER;
    uint64_t places = view->data; /* tiles are moved by elements */
    for (int d = 0; d < n; d++) places |= (uint64_t)dims[d].stride;
    if (places & (uint64_t)((item < 8 ? item : 8) - 1)) return OG_GATHER;
    for (int d = n - 2; d >= 0; d--)
        if (dims[d].stride == item && dims[d].size * (uint64_t)item >= OG_TILE_MIN_BYTES) return OG_TILES + d;
    return OG_GATHER;
}

/* Whether a launch may go by the short path. */
static inline int og_is_plain(const og_segment *s, uint32_t num_segments, uint32_t regions, uint32_t digests) {
    uint64_t bytes = s->numel * s->item_bytes;
    int is_float = s->widening == OG_F32 || s->widening == OG_BF16 || s->widening == OG_F16;
    return num_segments == 1 && regions == 1 && s->path == OG_DENSE && bytes && !((bytes | s->data) & 15) &&
           (is_float || (digests == 2 && s->widening < OG_FLOAT8)) && bytes < (uint64_t)1 << 35;
}

static inline uint64_t og_ceil(uint64_t a, uint64_t b) { return (a + b - 1) / b; }

/* The most blocks that are of use to a segment. */
static inline uint64_t og_most_blocks(const og_segment *s, const og_dim *dims) {
    uint64_t bytes = s->numel * s->item_bytes;
    if (s->path < OG_TILES) return s->path == OG_DENSE && bytes <= OG_ALONE_BYTES ? 1 : og_ceil(bytes, OG_BLOCK_BYTES);
    uint64_t rows = dims[s->path - OG_TILES].size, columns = dims[s->num_dims - 1].size;
    return s->numel / (rows * columns) * og_ceil(rows * s->item_bytes, OG_TILE_ROW_BYTES) * og_ceil(columns, OG_TILE_COLUMNS);
}

/* Fill `out` for the first views of `views`, as many as one launch can take. Does not fill where records go: ring, entries,
 * scratch, occurrence, ticket and capacity of the header are the launcher's (`og_planned_header`). Views must have passed
 * `og_view_problem`. Returns the number of views taken (at least 1). */
static inline uint32_t og_plan(og_planned *out, const og_view *views, uint32_t n, uint32_t flags, uint32_t num_sms) {
    og_launch_many *launch = &out->launch.many;
    og_header *header = &launch->header;
    uint32_t regions = flags >> OG_REGIONS_SHIFT & 255, count = 0, pool = 0, taken = 0;
    uint64_t useful[OG_MAX_SEGMENTS], load[OG_MAX_SEGMENTS], total_useful = 0, total_load = 0;
    if (regions < 2) regions = 1;
    if (regions > OG_MAX_SEGMENTS) regions = OG_MAX_SEGMENTS;
    memset(header, 0, sizeof *header);
    for (; taken < n && count + regions <= OG_MAX_SEGMENTS; taken++) {
        const og_view *view = &views[taken];
        og_dim dims[OG_MAX_DIMS];
        int num_dims = view->numel ? og_merge(view, dims) : 0, flips = (view->flip[0] | view->flip[1]) != 0 && view->numel;
        int path = view->numel ? og_path(view, dims, num_dims, (int)regions, flags & OG_STATISTICS) : OG_DENSE;
        uint32_t first_dim = pool;
        if (path != OG_DENSE) {
            if (pool + (uint32_t)(num_dims + flips) > OG_MAX_POOL) break;
            if (flips) launch->dims[pool].stride = (int64_t)view->flip[0], launch->dims[pool].size = view->flip[1], pool++;
            first_dim = pool;
            memcpy(&launch->dims[pool], dims, (size_t)num_dims * sizeof *dims);
            pool += (uint32_t)num_dims;
        }
        uint64_t numel = (uint64_t)view->numel, item = (uint64_t)view->item_bytes, each = numel;
        if (regions > 1) each = og_ceil(og_ceil(numel, regions) * item, 16) * 16 / item; /* whole vectors: all but the last are equal */
        for (uint32_t r = 0; r < regions; r++) {
            og_segment *s = &launch->segments[count];
            uint64_t first = r * each < numel ? r * each : numel;
            s->numel = numel - first < each ? numel - first : each;
            s->data = view->data + (path == OG_DENSE ? first * item : 0);
            s->first = path == OG_DENSE ? 0 : first;
            s->widening = (uint8_t)view->widening, s->item_bytes = (uint8_t)item, s->path = (uint8_t)path;
            s->num_dims = (uint8_t)num_dims, s->dims = (uint16_t)first_dim;
            s->region = (uint8_t)(regions > 1 ? r + 1 : 0), s->ticket = (uint8_t)taken;
            if (flips) header->flipped[count / 32] |= 1u << count % 32;
            useful[count] = og_most_blocks(s, dims);
            load[count] = s->numel * item * (path == OG_DENSE ? OG_DENSE_LOAD : path == OG_ROWS ? OG_ROWS_LOAD : path >= OG_TILES ? OG_TILES_LOAD : OG_GATHER_LOAD);
            total_useful += useful[count], total_load += load[count++];
        }
    }
    /* One block on every multiprocessor while that has each thread read a few vectors, then more; one is left for the claim. */
    uint64_t wanted = total_load / (OG_DENSE_LOAD * OG_SHARE_BYTES), fewest = num_sms - 1, most = (uint64_t)num_sms * OG_BLOCKS_PER_SM - 1;
    wanted = wanted < fewest ? fewest : wanted > most ? most : wanted;
    uint32_t grid;
    for (uint32_t tries = 0;; tries++) { /* each segment's share is rounded up; what is too many would run behind all the others */
        grid = count > 1 || useful[0] > 1;
        for (uint32_t k = 0; k < count; k++) {
            uint64_t blocks = total_useful <= fewest || !total_load ? useful[k] : og_ceil(load[k] * wanted, total_load);
            if (blocks > useful[k]) blocks = useful[k];
            launch->segments[k].first_block = grid;
            launch->segments[k].num_blocks = blocks ? (uint32_t)blocks : 1;
            grid += launch->segments[k].num_blocks;
        }
        uint64_t over = grid > most + 1 ? (grid - most - 1) << tries : 0;
        if (!over || tries == OG_GRID_TRIES) break;
        wanted = wanted > over + 1 ? wanted - over : 1;
    }
    uint32_t digests = flags & OG_NO_ELEMENTS ? 2 : flags & OG_NO_VALUE64 ? 1 : 0, few = count <= OG_FEW_SEGMENTS && pool <= OG_FEW_POOL;
    header->num_segments = count, header->num_blocks = grid;
    header->is_plain = og_is_plain(&launch->segments[0], count, regions, digests) && !(flags & OG_STATISTICS);
    out->kernel = 4 * digests + (flags & OG_STATISTICS ? 2u : 0u) + (few ? 0u : 1u);
    out->grid = grid, out->num_views = taken, out->num_segments = count;
    out->launch_bytes = few ? sizeof(og_launch_few) : sizeof(og_launch_many);
    if (few) memmove(out->launch.few.dims, launch->dims, pool * sizeof(og_dim));
    return taken;
}

static inline og_header *og_planned_header(og_planned *planned) { return &planned->launch.many.header; }

#endif
