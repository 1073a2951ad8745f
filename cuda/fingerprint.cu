/* The fingerprint kernels: one pass over up to 64 views, one launch per operator, records into the device ring.
 *
 * Bit for bit spec.md (definition 1). Compiled at run time by NVRTC (CuPy's RawModule) with this folder as include path; the same
 * text compiles as C++ over tests/support/cuda_emulation.h. Parameter and names: probe_api.h; grid: plan.h.
 *
 * Cost: see tests/benchmarks/RESULTS.md, section Kernels. Registers: at most 128, so that two blocks share a multiprocessor.
 * A launch begins with a cold instruction cache: the usual tensor goes by plain.cuh, before everything else.
 */
#include "device.cuh"
#include "digest.cuh"
#include "plain.cuh"
#include "ring.cuh"
#include "rows.cuh"
#include "tiles.cuh"
#include "walks.cuh"

/* The segment of this block: segments are sorted by their first block. */
OG_DEVICE u32 find_segment(const og_segment *segments, u32 num_segments, u32 block) {
    u32 low = 0, high = num_segments;
    OG_ROLLED
    while (high - low > 1) {
        u32 middle = (low + high) / 2;
        if (block >= segments[middle].first_block)
            low = middle;
        else
            high = middle;
    }
    return low;
}

template <int DIGESTS, bool STATISTICS> OG_DEVICE void walk(Sums &s, const Work &work, Vector *shared) {
    if constexpr (STATISTICS) { /* the rolled loop alone: a part of the time to compile is worth more than the speed of these */
        s = walk_vectors<DIGESTS, STATISTICS>(work);
    } else if (work.path >= OG_TILES) {
        s = walk_tiles<DIGESTS, STATISTICS>(work, (Room *)shared);
    } else if (has_rows<DIGESTS>(work)) {
        s = walk_rows<DIGESTS>(work);
    } else if (work.path != OG_DENSE || (DIGESTS != NO_ELEMENT_DIGESTS && (work.how < OG_F32 || work.how > OG_F16))) {
        s = walk_vectors<DIGESTS, STATISTICS>(work);
    } else {
        walk_dense<DIGESTS, STATISTICS>(s, work);
    }
}

template <int DIGESTS, bool STATISTICS> OG_DEVICE void fingerprint(const og_header &header, const og_segment *segments, const og_dim *dims) {
    OG_SHARED(Meeting, meeting, 1);
    OG_SHARED(Vector, room, STATISTICS ? 1 : sizeof(Room) / 16);
    OG_SHARED(u32, table, 256);
    const u32 thread = threadIdx.x, warp = thread / WARP;
    const bool alone = header.num_blocks == 1;
    if constexpr (!STATISTICS) {
        if (header.is_plain) return plain_tensor<DIGESTS>(header, segments[0], meeting);
    }
    if (!alone && blockIdx.x == 0) {
        if (warp) return;
        if (thread == 0) leave_claim(header);
        deliver_together<DIGESTS, STATISTICS>(header, segments, thread);
        return;
    }
    const u32 at = find_segment(segments, header.num_segments, blockIdx.x);
    const og_segment &segment = segments[at];

    Work work;
    work.data = segment.data, work.numel = segment.numel, work.first = segment.first;
    work.how = segment.widening, work.item_bytes = segment.item_bytes, work.path = segment.path, work.num_dims = segment.num_dims;
    work.thread = thread, work.block = blockIdx.x - segment.first_block, work.num_blocks = segment.num_blocks;
    work.num_threads = alone ? OG_THREADS - WARP : OG_THREADS;
    work.dims = dims + segment.dims;
    work.table = table;
    const bool flips = header.flipped[at / 32] >> at % 32 & 1;
    work.flip[0] = flips ? (u64)work.dims[-1].stride : 0;
    work.flip[1] = flips ? work.dims[-1].size : 0;
    if (work.how >= OG_FLOAT8 && work.how <= OG_E8M0FNU) {
        table[thread] = widen_float8(thread, work.how);
        OG_BARRIER();
    }
    if (alone && thread == OG_THREADS - WARP) meeting->claim = claim(header);

    Sums s = {0, 0, 0, 0, 0, 0, 0, 0};
    if (work.numel) walk<DIGESTS, STATISTICS>(s, work, room);
    add_up<STATISTICS>(s, thread, meeting);
    if (warp) return;
    if (alone) {
        deliver_alone<DIGESTS, STATISTICS>(header, segments, thread, meeting);
        return;
    }
    leave<STATISTICS>(meeting, thread, scratch_of(header, at));
    deliver_together<DIGESTS, STATISTICS>(header, segments, thread);
}

#define FINGERPRINT(NAME, DIGESTS, STATISTICS)                                                              \
    OG_KERNEL(OG_THREADS, OG_RESIDENT_BLOCKS) NAME##_few(OG_PARAMETER og_launch_few launch) {                 \
        fingerprint<DIGESTS, STATISTICS>(launch.header, launch.segments, launch.dims);                      \
    }                                                                                                       \
    OG_KERNEL(OG_THREADS, OG_RESIDENT_BLOCKS) NAME##_many(OG_PARAMETER og_launch_many launch) {               \
        fingerprint<DIGESTS, STATISTICS>(launch.header, launch.segments, launch.dims);                      \
    }

/* A part of them may be asked for with -DOG_ONLY_...: compiling all takes longest. */
#if !defined(OG_ONLY_MIX)
FINGERPRINT(og_all, ALL_DIGESTS, false)
#if !defined(OG_ONLY_ALL)
FINGERPRINT(og_alls, ALL_DIGESTS, true)
FINGERPRINT(og_bag, NO_VALUE, false)
FINGERPRINT(og_bags, NO_VALUE, true)
#endif
#endif
#if !defined(OG_ONLY_ALL)
FINGERPRINT(og_mix, NO_ELEMENT_DIGESTS, false)
#if !defined(OG_ONLY_MIX)
FINGERPRINT(og_mixs, NO_ELEMENT_DIGESTS, true)
#endif
#endif
