/* One dense tensor of floats, aligned and in whole vectors: what most probes of a training step are, on a path of its own.
 *
 * Every launch finds its multiprocessor's instruction cache cold, and fetching is most of what a small probe costs (measured: leaving out
 * code that was never run took a third off). So this path is short rather than clever: few copies of a loop, a record made by the lanes of
 * one warp, a word each, so that its arithmetic is there once, and rehearsed by an idle warp while the data are read.
 */
#pragma once

#include "ring.cuh"
#include "walks.cuh"

/* `count` whole vectors: full tiles, then singly, two loads ahead. */
template <int DIGESTS, int HOW> OG_DEVICE void plain_vectors(Sums &s, u64 data, u32 item_bytes, u32 count, u32 block, u32 num_blocks, u32 thread, u32 threads) {
    const u32 stride = num_blocks * threads;
    const Vector first = repeated(load_vector(data), item_bytes);
    u32 index = block * threads + thread;
    if (threads == OG_THREADS && count >= stride * OG_AT_ONCE)
        index += (u32)full_tiles<DIGESTS, false, HOW, OG_AT_ONCE, true>(s, data, 0, first, count, block, num_blocks, thread);
    if (index >= count) return;
    u32 ahead = index;
    Vector a = load_vector(data + ahead * 16ull);
    if (ahead + stride < count) ahead += stride; /* past the end: the last one again */
    Vector b = load_vector(data + ahead * 16ull);
    OG_ROLLED
    do { /* one exit, at the end: else the compiler makes a second copy of the first round */
        if (ahead + stride < count) ahead += stride;
        Vector c = load_vector(data + ahead * 16ull);
        s.differs |= difference(a, first);
        hash_vector<DIGESTS, false, HOW>(s, a, POSITION * 2 * index);
        index += stride;
        a = b, b = c;
    } while (index < count);
}

struct Header { /* what a record needs of its launch, in registers */
    u64 entries, ticket, nbytes, components;
    u32 capacity, flags;
};

/* A record out of one warp's words: lanes 0 to 3 the sums, 4 whether elements differ, 9 to 11 the claim. With NO_POSITION it is
 * rehearsed: all is done but the store, by a warp that has nothing better to do, so that the code is in the cache when it counts. */
template <int DIGESTS> OG_OUTLINED void write_by_lanes(Header header, u32 lane, u64 x) {
    const u64 position = shuffle_xor(x, lane ^ 9);
    u64 w = shuffle_xor(x, lane ^ (lane == 1 ? 10 : lane == 6 ? 11 : lane == 9 ? 4 : (lane - 2) & 31));
    const u64 finished = finish(w, lane == 2 ? header.nbytes : header.components);
    if (lane - 2 < 3) w = finished;
    if ((lane == 3 && DIGESTS != ALL_DIGESTS) || (lane == 4 && DIGESTS == NO_ELEMENT_DIGESTS)) w = 0;
    if (lane == 0) w = header.ticket;
    if (lane == 9) w = (u64)(header.flags | (w ? 0 : OG_TRIVIAL)) << 32;
    if (lane == 7 || lane == 8 || lane == 10) w = 0;
    u64 sum = lane < 11 ? (w ^ w >> 29) * (SPREAD + 2 * lane) : 0; /* og_check */
    OG_ROLLED
    for (int distance = 8; distance; distance /= 2) sum += shuffle_xor(sum, distance);
    sum += (position + 1) * POSITION;
    if (lane == 11) w = sum ^ sum >> 32;
    if (lane < 12 && position != NO_POSITION) store64(header.entries + (position & (header.capacity - 1)) * sizeof(og_entry) + 8 * lane, w);
}

template <int DIGESTS> OG_DEVICE void plain_tensor(const og_header &header, const og_segment &segment, Meeting *meeting) {
    const u32 thread = threadIdx.x, lane = thread % WARP, warp = thread / WARP;
    const bool alone = header.num_blocks == 1;
    const u64 nbytes = segment.numel * segment.item_bytes;
    const u32 flags = (segment.numel <= 2 ? OG_TRIVIAL : 0) | (DIGESTS == NO_VALUE ? OG_VALUE64_ABSENT : DIGESTS == NO_ELEMENT_DIGESTS ? OG_ELEMENTS_ABSENT : 0);
    const Header of = {header.entries, header.ticket + segment.ticket, nbytes, nbytes >> (segment.widening == OG_F32 ? 2 : 1), header.capacity, flags};
    u64 sum = 0;
    bool differs = false;
    if (alone || blockIdx.x) {
        Sums s = {0, 0, 0, 0, 0, 0, 0, 0};
        if (alone && warp >= WARPS - 2) {
            if (warp == WARPS - 2)
                write_by_lanes<DIGESTS>(of, lane, NO_POSITION);
            else if (lane == 0)
                meeting->claim = claim(header);
        } else {
            const u32 threads = alone ? OG_THREADS - 2 * WARP : OG_THREADS, block = blockIdx.x - segment.first_block, count = (u32)(nbytes / 16);
            if (DIGESTS == NO_ELEMENT_DIGESTS || segment.widening == OG_F32)
                plain_vectors<DIGESTS, OG_F32>(s, segment.data, segment.item_bytes, count, block, segment.num_blocks, thread, threads);
            else if (segment.widening == OG_BF16)
                plain_vectors<DIGESTS, OG_BF16>(s, segment.data, segment.item_bytes, count, block, segment.num_blocks, thread, threads);
            else
                plain_vectors<DIGESTS, OG_F16>(s, segment.data, segment.item_bytes, count, block, segment.num_blocks, thread, threads);
        }
        sum = add_across(s, lane);
        differs = any_in_warp(s.differs);
        sum = add_in_group(sum, lane);
        if (lane % 8 == 0) meeting->warps[lane / 8 * WARPS + warp] = sum;
        if (lane == 0) meeting->differs[warp] = differs;
        OG_BARRIER();
        if (warp == 1 && !alone) write_by_lanes<DIGESTS>(of, lane, NO_POSITION);
        if (warp) return;
        sum = add_in_group(meeting->warps[lane], lane);
        differs = any_in_warp(meeting->differs[lane % WARPS]);
    } else if (warp) {
        return;
    } else if (lane == 0) {
        leave_claim(header);
    }
    u64 x;
    if (alone) {
        x = shuffle_xor(sum, lane ^ (lane * 8 & 31));
        if (lane == 4) x = differs;
        if (lane - 9 < 3) x = (&meeting->claim.position)[lane - 9];
    } else {
        if (blockIdx.x) {
            const u64 place = header.scratch + 64 + lane; /* word lane / 8 */
            if (lane == 24)
                xor_to(place, sum);
            else if (lane % 8 == 0)
                add_to(place, sum);
            if (lane == 1 && differs) raise_to(header.scratch + 64 + 8 * DIFFERS_WORD, 1);
        }
        warp_barrier();
        bool is_last = false;
        if (lane == 0) {
            OG_FENCE();
            is_last = atomic_add(header.scratch + ARRIVED, 1) == header.num_blocks - 1;
        }
        if (!any_in_warp(is_last)) return;
        OG_FENCE();
        const u64 place = header.scratch + (lane < 8 ? 64 + 8 * lane : 8 * (lane & 7));
        x = load_counter(place);
        warp_barrier();
        if (lane < 12) store64(place, 0);
    }
    write_by_lanes<DIGESTS>(of, lane, x);
}
