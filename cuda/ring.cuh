/* From the sums of threads to records in the ring: within a block, between blocks, out.
 *
 * A launch of one block needs no scratch; its last warp reads no data but claims the entry meanwhile. In a larger launch block 0 does
 * nothing but claim the entries, all in one go; every other block adds its sums to the scratch of its segment, and the block that
 * arrives last finishes all segments and leaves the scratch zeroed: a replayed CUDA graph can run the same launch again without any
 * help from the host. A full ring is never overwritten and never waited for.
 */
#pragma once

#include "digest.cuh"

#define WARP 32
#define WARPS (OG_THREADS / WARP)
#define NO_POSITION (~0ull)

enum { MIX_WORD, VALUE_WORD, BAG_WORD, XOR_WORD, DIFFERS_WORD, NANS_WORD, INFS_WORD, LARGEST_WORD };

struct Claim {
    u64 position, occurrence, clock_ns;
};

struct Meeting { /* of one block, in shared memory */
    u64 warps[4 * WARPS]; /* MIX_WORD to XOR_WORD of every warp */
    u32 differs[WARPS], nans[WARPS], infs[WARPS], largest[WARPS];
    u64 total[OG_SCRATCH_WORDS];
    Claim claim;
};

/* Four sums of a warp at once, each lane left with the one of word lane / 8: lanes hand over what they do not keep, so that twelve
 * shuffles do what would take forty. */
OG_DEVICE u64 add_across(const Sums &s, u32 lane) {
    bool upper = lane & 16, odd = lane & 8, is_xor = upper && odd;
    u64 a = upper ? s.bag : s.mix, b = upper ? s.bytes_xor : s.value;
    u64 c = shuffle_xor(upper ? s.mix : s.bag, 16), d = shuffle_xor(upper ? s.value : s.bytes_xor, 16);
    a += c;
    b = upper ? b ^ d : b + d;
    c = shuffle_xor(odd ? a : b, 8);
    a = odd ? b : a;
    a = is_xor ? a ^ c : a + c;
    return a;
}

/* The last three steps, over groups of eight lanes; all of them hold the sum. */
OG_DEVICE u64 add_in_group(u64 x, u32 lane) {
    const bool is_xor = lane / 8 == XOR_WORD;
    OG_ROLLED
    for (int distance = 4; distance; distance /= 2) {
        u64 y = shuffle_xor(x, distance);
        x = is_xor ? x ^ y : x + y;
    }
    return x;
}

struct Notes {
    u32 nans, infs, largest;
};

OG_DEVICE Notes notes_across(Notes n) {
    OG_ROLLED
    for (int distance = 16; distance; distance /= 2) {
        n.nans += shuffle_xor(n.nans, distance);
        n.infs += shuffle_xor(n.infs, distance);
        u32 other = shuffle_xor(n.largest, distance);
        n.largest = other > n.largest ? other : n.largest;
    }
    return n;
}

/* The sums of the block in meeting->total; by all threads, and for the first warp to read. */
template <bool STATISTICS> OG_DEVICE void add_up(const Sums &s, u32 thread, Meeting *meeting) {
    const u32 lane = thread % WARP, warp = thread / WARP;
    u64 sum = add_in_group(add_across(s, lane), lane);
    bool differs = any_in_warp(s.differs);
    if (lane % 8 == 0) meeting->warps[lane / 8 * WARPS + warp] = sum;
    if (lane == 0) meeting->differs[warp] = differs;
    if (STATISTICS) {
        Notes n = notes_across(Notes{s.nans, s.infs, s.largest});
        if (lane == 0) meeting->nans[warp] = n.nans, meeting->infs[warp] = n.infs, meeting->largest[warp] = n.largest;
    }
    OG_BARRIER();
    if (warp) return;
    sum = add_in_group(meeting->warps[lane], lane);
    differs = any_in_warp(meeting->differs[lane % WARPS]);
    if (lane % 8 == 0) meeting->total[lane / 8] = sum;
    if (lane == 0) meeting->total[DIFFERS_WORD] = differs;
    if (STATISTICS) {
        const bool counts = lane < WARPS;
        Notes n = notes_across(Notes{counts ? meeting->nans[lane % WARPS] : 0, counts ? meeting->infs[lane % WARPS] : 0, counts ? meeting->largest[lane % WARPS] : 0});
        if (lane == 0) meeting->total[NANS_WORD] = n.nans, meeting->total[INFS_WORD] = n.infs, meeting->total[LARGEST_WORD] = n.largest;
    }
    warp_barrier();
}

/* Scratch: of the launch, then 64 bytes of each segment with the words above. */
enum { ARRIVED = 0, POSITION_AT = 8, OCCURRENCE_AT = 16, CLOCK_AT = 24 };

OG_DEVICE u64 scratch_of(const og_header &header, u32 segment) { return header.scratch + 64 + 64ull * segment; }

/* A word by each lane, so that all are under way at once. */
template <bool STATISTICS> OG_DEVICE void leave(const Meeting *meeting, u32 lane, u64 scratch) {
    if (lane >= (STATISTICS ? OG_SCRATCH_WORDS : DIFFERS_WORD + 1)) return;
    u64 word = meeting->total[lane], place = scratch + 8 * lane;
    if (!word) return;
    if (lane == XOR_WORD)
        xor_to(place, word);
    else if (lane == DIFFERS_WORD || lane == LARGEST_WORD)
        raise_to(place, word);
    else
        add_to(place, word);
}

/* n positions at once, or none and a count of the loss. */
OG_DEVICE u64 claim_position(const og_header &header) {
    const u64 position = header.ring, lost = header.ring + 8, consumed_at = header.ring + 16, n = header.num_segments;
    u64 seen = load_counter(position), consumed = load_counter(consumed_at); /* both only grow */
    OG_ROLLED
    for (;;) {
        if (seen + n - consumed > header.capacity) {
            consumed = load_counter(consumed_at);
            if (seen + n - consumed > header.capacity) {
                add_to(lost, n);
                return NO_POSITION;
            }
        }
        u64 found = atomic_swap_if(position, seen, seen + n);
        if (found == seen) return seen;
        seen = found;
    }
}

OG_DEVICE Claim claim(const og_header &header) {
    u64 occurrence = header.occurrence ? atomic_add(header.occurrence, 1) : 0;
    return Claim{claim_position(header), occurrence, device_clock_ns()};
}

struct Totals {
    u64 words[OG_SCRATCH_WORDS];
};

template <bool STATISTICS> OG_DEVICE Totals collect(u64 scratch) {
    Totals totals;
    OG_UNROLL
    for (int k = 0; k < OG_SCRATCH_WORDS; k++) totals.words[k] = STATISTICS || k <= DIFFERS_WORD ? load_counter(scratch + 8 * k) : 0;
    OG_UNROLL
    for (int k = 0; k < OG_SCRATCH_WORDS; k += 2) store_vector(scratch + 8 * k, 0, 0);
    return totals;
}

/* One record, written whole by one thread: its check lets the copier see whether all of it has arrived. */
template <int DIGESTS, bool STATISTICS> OG_DEVICE void write_record(const og_header &header, const og_segment &segment, const Totals &totals, const Claim &claim, u32 place) {
    if (claim.position == NO_POSITION) return;
    const u64 *sum = totals.words, position = claim.position + place;
    u64 nbytes = segment.numel * segment.item_bytes;
    u32 how = segment.widening, component_shift = how == OG_B64 || how >= OG_F64 ? 3 : how == OG_F32 || how == OG_U32 || how == OG_I32 ? 2 : how >= OG_FLOAT8 || how <= OG_I8 ? 0 : 1;
    u64 components = nbytes >> component_shift;
    bool noted = STATISTICS && how != OG_B64;
    u32 flags = (segment.numel <= 2 || !sum[DIFFERS_WORD] ? OG_TRIVIAL : 0) | (noted ? OG_HAS_STATISTICS : 0);
    if (DIGESTS == NO_VALUE) flags |= OG_VALUE64_ABSENT;
    if (DIGESTS == NO_ELEMENT_DIGESTS) flags |= OG_ELEMENTS_ABSENT;
    u64 w[12];
    w[0] = header.ticket + segment.ticket;
    w[1] = claim.occurrence;
    w[2] = finish(sum[MIX_WORD], nbytes);
    w[3] = DIGESTS == ALL_DIGESTS ? finish(sum[VALUE_WORD], components) : 0;
    w[4] = DIGESTS != NO_ELEMENT_DIGESTS ? finish(sum[BAG_WORD], components) : 0;
    w[5] = sum[XOR_WORD];
    w[6] = claim.clock_ns;
    w[7] = noted ? sum[NANS_WORD] : 0;
    w[8] = noted ? sum[INFS_WORD] : 0;
    w[9] = join(noted ? low32(sum[LARGEST_WORD]) : 0, flags);
    w[10] = segment.region;
    w[11] = og_check(w, position);
    u64 entry = header.entries + (position & (header.capacity - 1)) * sizeof(og_entry);
    OG_UNROLL
    for (int k = 0; k < 12; k += 2) store_vector(entry + 8 * k, w[k], w[k + 1]);
}

/* Of a launch of one block, by its first warp. */
template <int DIGESTS, bool STATISTICS> OG_DEVICE void deliver_alone(const og_header &header, const og_segment *segments, u32 lane, const Meeting *meeting) {
    if (lane) return;
    Totals totals;
    OG_UNROLL
    for (int k = 0; k < OG_SCRATCH_WORDS; k++) totals.words[k] = STATISTICS || k <= DIFFERS_WORD ? meeting->total[k] : 0;
    write_record<DIGESTS, STATISTICS>(header, segments[0], totals, meeting->claim, 0);
}

/* By the first warp of every block, when what its block has to say is in the scratch: the last to arrive finishes the launch. */
template <int DIGESTS, bool STATISTICS> OG_DEVICE void deliver_together(const og_header &header, const og_segment *segments, u32 lane) {
    warp_barrier();
    bool is_last = false;
    if (lane == 0) {
        OG_FENCE();
        is_last = atomic_add(header.scratch + ARRIVED, 1) == header.num_blocks - 1;
    }
    if (!any_in_warp(is_last)) return;
    OG_FENCE();
    Claim claim = {load_counter(header.scratch + POSITION_AT), load_counter(header.scratch + OCCURRENCE_AT), load_counter(header.scratch + CLOCK_AT)};
    warp_barrier();
    if (lane == 0) store_vector(header.scratch, 0, 0), store_vector(header.scratch + 16, 0, 0);
    OG_ROLLED
    for (u32 k = lane; k < header.num_segments; k += WARP) {
        Totals totals = collect<STATISTICS>(scratch_of(header, k));
        write_record<DIGESTS, STATISTICS>(header, segments[k], totals, claim, k);
    }
}

/* What block 0 of a launch of several does, in one thread. */
OG_DEVICE void leave_claim(const og_header &header) {
    Claim made = claim(header);
    store64(header.scratch + POSITION_AT, made.position);
    store_vector(header.scratch + OCCURRENCE_AT, made.occurrence, made.clock_ns);
}
