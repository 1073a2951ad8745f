/* What the kernels (fingerprint.cu), the launcher (launch.c) and its callers agree on. Plain C, also read by NVRTC.
 *
 * Layouts are fixed: every field lies at its natural alignment, nothing is packed, all memory is little-endian.
 */
#ifndef OPGUARD_PROBE_API_H
#define OPGUARD_PROBE_API_H

#if defined(__CUDACC_RTC__)
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
#else
#include <stdint.h>
#endif

#if defined(__CUDACC_RTC__)
#define OG_INLINE static __device__ __forceinline__
#else
#define OG_INLINE static inline
#endif

#define OG_API_VERSION 1
#define OG_MAX_DIMS 24

/* ---- what callers see --------------------------------------------------------------------------------------------- */

/* `widening`: the numbers of `Widening` in opguard_core/fingerprint/dtypes.py up to OG_F16 (9). An 8-bit float is OG_FLOAT8 (10)
 * plus the place of its format in `dtypes.FLOAT8`. The last two read as OG_B64 and say what the bits are, for the statistics. */
enum {
    OG_U8, OG_I8, OG_U16, OG_I16, OG_U32, OG_I32, OG_B64, OG_F32, OG_BF16, OG_F16,
    OG_FLOAT8, OG_E5M2 = OG_FLOAT8, OG_E4M3FN, OG_E5M2FNUZ, OG_E4M3FNUZ, OG_E8M0FNU,
    OG_F64, OG_I64, OG_NUM_WIDENINGS
};

typedef struct {
    uint64_t data; /* address of element (0, ..., 0); ignored when numel is 0 */
    int64_t numel;
    int32_t widening, item_bytes, component_bytes, num_dims;
    uint64_t flip[2]; /* XORed into every 16 logical bytes: how conjugate and negative views read */
    int64_t sizes[OG_MAX_DIMS], strides[OG_MAX_DIMS]; /* strides in bytes, outermost first */
} og_view;

/* Flags of `submit`. */
enum {
    OG_NO_VALUE64 = 1,    /* leave value64 out */
    OG_NO_ELEMENTS = 2,   /* leave value64 and bag64 out */
    OG_STATISTICS = 4,    /* count NaN and Inf, find max |x| (over what is not NaN; integers and float64 rounded to float32) */
    OG_REGIONS_SHIFT = 8  /* bits 8-15: 2..64 cut every view into so many regions (og_region); 0 and 1 do not */
};

/* Flags of a record. */
enum {
    OG_TRIVIAL = 1,
    OG_HAS_STATISTICS = 2,
    OG_LOST = 4,
    OG_ELEMENTS_ABSENT = 8, /* value64 and bag64 were not computed and read 0 */
    OG_VALUE64_ABSENT = 16  /* value64 alone was not computed and reads 0 */
};

typedef struct {
    uint64_t ticket, occurrence; /* occurrence: 0, 1, ... for the replays of a captured launch; 0 for an eager one */
    uint64_t mix64, value64, bag64, xor64; /* finished: spec.md section 4 */
    uint64_t t_device_ns;                  /* %globaltimer when its place in the ring was claimed: the probe had begun */
    uint64_t nan_count, inf_count;
    float max_abs;
    uint32_t flags;
    uint32_t region; /* 0: the whole view; 1..64: that region of it (then one ticket has as many records as regions) */
    uint32_t reserved;
} og_record;

typedef struct {
    int32_t version;
    uint64_t (*submit)(int32_t device, void *stream, const og_view *views, int32_t n, uint32_t flags);
    int32_t (*take)(og_record *out, int32_t max);
    uint64_t (*submitted)(void);
    void (*wait)(uint64_t ticket, int64_t timeout_ns);
    const char *(*last_error)(void);
} og_probe_api;

/* ---- between the launcher and the kernels ------------------------------------------------------------------------- */

/* One entry of the ring. `check` is og_check of the record and of the position it was written for: an entry that is torn, or
 * that still holds the record of an earlier round, does not pass, and is simply looked at again later. */
typedef struct {
    og_record record;
    uint64_t check;
} og_entry; /* 96 bytes */

OG_INLINE uint64_t og_check(const uint64_t *record, uint64_t position) {
    uint64_t sum = (position + 1) * 0x9E3779B97F4A7C15ull;
    for (int k = 0; k < 11; k++) sum += (record[k] ^ (record[k] >> 29)) * (0xD6E8FEB86659FD93ull + 2u * (uint64_t)k);
    return sum ^ (sum >> 32);
}

/* In device memory, zeroed once by the launcher. A launch of n segments claims n positions at once; entry of a position:
 * entries[position & (capacity - 1)]. If position + n - consumed > capacity it claims nothing and adds n to `lost`. */
typedef struct {
    uint64_t position; /* claimed so far; written by kernels only */
    uint64_t lost;     /* records not written; written by kernels only */
    uint64_t consumed; /* written by the copier only (an 8-byte asynchronous copy on its own stream); device memory, since every probe reads it */
    uint64_t reserved[5];
} og_ring;

/* Scratch of one launch: OG_SCRATCH_BYTES(n), zeroed once, left zeroed by every launch; private to launches that can overlap. */
#define OG_SCRATCH_WORDS 8
#define OG_SCRATCH_BYTES(n) (64u + 64u * (unsigned)(n))

/* How a segment is read. OG_ROWS: innermost rows are whole aligned vectors. OG_TILES + d: dimension d lies densely in memory, the innermost one does not. */
enum { OG_DENSE, OG_GATHER, OG_ROWS, OG_TILES };

typedef struct {
    uint64_t data;        /* address of element 0 of the view; of the region for OG_DENSE */
    uint64_t numel;       /* elements of this segment */
    uint64_t first;       /* first element of the region within the view; 0 for OG_DENSE */
    uint32_t first_block; /* of the launch's grid */
    uint32_t num_blocks;
    uint8_t widening, item_bytes, path, num_dims;
    uint16_t dims;  /* its dimensions: dims[dims] ...; with `flipped` the entry before them holds the flip */
    uint8_t region; /* og_record.region */
    uint8_t ticket; /* added to og_header.ticket */
} og_segment;       /* 40 bytes */

typedef struct {
    int64_t stride;      /* bytes; or flip[0] */
    uint64_t size;       /* or flip[1] */
    uint64_t reciprocal; /* floor((2^64 - 1) / size) + 1: floor(n / size) is the high word of n * reciprocal for n < 2^32 */
} og_dim;

typedef struct {
    uint64_t ring;       /* og_ring */
    uint64_t entries;    /* og_entry[capacity], at a multiple of 16 */
    uint64_t scratch;    /* may be 0 when the grid is one block */
    uint64_t occurrence; /* uint64_t counter of a captured launch, zeroed once; 0 for an eager launch */
    uint64_t ticket;
    uint32_t capacity; /* a power of two, at least OG_MAX_SEGMENTS */
    uint32_t num_segments;
    uint32_t num_blocks;
    uint32_t flipped[2]; /* bit s: segment s has a flip */
    uint32_t is_plain; /* one dense tensor of floats, aligned and in whole vectors: may go by plain.cuh */
} og_header;             /* 64 bytes */

#define OG_MAX_SEGMENTS 64
#define OG_MAX_POOL 61
#define OG_FEW_SEGMENTS 8
#define OG_FEW_POOL 25

/* The parameter of the kernels, by value. */
typedef struct {
    og_header header;
    og_segment segments[OG_FEW_SEGMENTS];
    og_dim dims[OG_FEW_POOL];
} og_launch_few; /* 984 bytes */

typedef struct {
    og_header header;
    og_segment segments[OG_MAX_SEGMENTS];
    og_dim dims[OG_MAX_POOL];
} og_launch_many; /* 4088 bytes */

/* How the kernels cut their work; what they were compiled with and what plan.h uses must agree. */
enum {
    OG_THREADS = 256,                              /* of every block */
    OG_AT_ONCE = 6,                                /* vectors of 16 bytes that a thread has under way */
    OG_SHARE_BYTES = OG_THREADS * 4 * 16,          /* what a block gets to read before there are more of them */
    OG_BLOCK_BYTES = OG_THREADS * 16,              /* the least that is worth a block */
    OG_ALONE_BYTES = 2 * OG_BLOCK_BYTES,           /* the most that a launch of one block reads */
    OG_TILE_ROW_BYTES = 128,                       /* one row of a transposed tile in memory: a cache line */
    OG_TILE_COLUMNS = 128,                         /* and so many of them */
    OG_BLOCKS_PER_SM = 2                           /* resident: 128 registers. Source: this and the numbers above measured on 132 SMs */
};

/* Kernels by name: og_<digests>_<capacity>, digests: all, bag (without value64), mix (without both), each with an "s" behind for the
 * statistics; capacity: few, many. Example: og_all_few, og_mixs_many. `plan.h` fills the parameter and picks grid and kernel:
 * og_plan(views, n, flags, num_sms, ...). Launchers use it rather than fill these structs themselves. */

#endif
