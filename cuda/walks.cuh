/* How a segment's logical bytes are reached, 16 at a time: densely, by gathering, through transposed tiles.
 *
 * No vector of 16 logical bytes is split between threads, so no lane and no pair is. Aligned 16-byte reads may touch bytes before
 * and behind the tensor, but only within 16 aligned bytes that hold some of it: never another page.
 */
#pragma once

#include "digest.cuh"

/* One segment and the part of it that this block does. */
struct Work {
    u64 data, numel, first;
    u32 how, item_bytes, path, num_dims, thread, block, num_blocks;
    u32 num_threads; /* of the block that read data */
    const og_dim *dims;
    const u32 *table; /* in shared memory, for 8-bit floats */
    u64 flip[2];
};

OG_DEVICE Vector flipped(Vector v, const Work &work) {
    v.word[0] ^= low32(work.flip[0]), v.word[1] ^= high32(work.flip[0]);
    v.word[2] ^= low32(work.flip[1]), v.word[3] ^= high32(work.flip[1]);
    return v;
}

/* The bytes from `shift` on of two neighbouring vectors. */
OG_DEVICE Vector shifted(const Vector &a, const Vector &b, u32 shift) {
    u32 w[8] = {a.word[0], a.word[1], a.word[2], a.word[3], b.word[0], b.word[1], b.word[2], b.word[3]};
    OG_UNROLL
    for (int k = 0; k < 6; k++) w[k] = shift & 8 ? w[k + 2] : w[k];
    OG_UNROLL
    for (int k = 0; k < 5; k++) w[k] = shift & 4 ? w[k + 1] : w[k];
    Vector v;
    OG_UNROLL
    for (int k = 0; k < 4; k++) v.word[k] = funnel_right(w[k], w[k + 1], 8 * (shift & 3));
    return v;
}

/* `bytes` (1 to 16) bytes from any address on, zero above them. */
OG_DEVICE Vector load_bytes(u64 address, u32 bytes) {
    u32 shift = address & 15;
    Vector a = load_vector(address - shift), b = {{0, 0, 0, 0}};
    if (shift + bytes > 16) b = load_vector(address - shift + 16);
    Vector v = shifted(a, b, shift);
    OG_UNROLL
    for (u32 k = 0; k < 4; k++) {
        u32 kept = bytes > 4 * k ? bytes - 4 * k : 0;
        if (kept < 4) v.word[k] &= (1u << 8 * kept) - 1;
    }
    return v;
}

/* One element, repeated to 16 bytes. */
OG_DEVICE Vector repeated(Vector v, u32 item_bytes) {
    if (item_bytes == 1) v.word[0] = (v.word[0] & 0xFFu) * 0x01010101u;
    if (item_bytes == 2) v.word[0] = (v.word[0] & 0xFFFFu) * 0x00010001u;
    if (item_bytes <= 4) v.word[1] = v.word[0];
    if (item_bytes <= 8) v.word[2] = v.word[0], v.word[3] = v.word[1];
    return v;
}

OG_DEVICE u32 difference(const Vector &v, const Vector &w) {
    return (v.word[0] ^ w.word[0]) | (v.word[1] ^ w.word[1]) | (v.word[2] ^ w.word[2]) | (v.word[3] ^ w.word[3]);
}

/* Whether the first `bytes` bytes differ. */
OG_DEVICE u32 difference(const Vector &v, Vector w, u32 bytes) {
    OG_UNROLL
    for (u32 k = 0; k < 4; k++) {
        u32 kept = bytes > 4 * k ? bytes - 4 * k : 0;
        if (kept < 4) w.word[k] &= (1u << 8 * kept) - 1;
    }
    return difference(v, w);
}

/* One whole vector of a dtype known at compile time; `base`: C times the number of lanes before it. */
template <int DIGESTS, bool STATISTICS, int HOW> OG_DEVICE void hash_vector(Sums &s, const Vector &v, u64 base) {
    lanes(s, v, base);
    narrow_vector<DIGESTS, STATISTICS, HOW>(s, v, HOW == OG_F32 ? base : base * 2);
}

template <bool ALIGNED> OG_DEVICE Vector load_dense(u64 address, u32 shift) {
    if (ALIGNED) return load_vector(address);
    return shifted(load_vector_shared_by_threads(address), load_vector_shared_by_threads(address + 16), shift);
}

/* Whole vectors of dense memory from `start` on, while every block has a full tile of OG_THREADS * AT_ONCE: all loads of a tile are under
 * way before its first hash, and the comparison with the first element stops once it has found a difference. Returns how many were read. */
template <int DIGESTS, bool STATISTICS, int HOW, int AT_ONCE, bool ALIGNED>
OG_DEVICE u64 full_tiles(Sums &s, u64 start, u32 shift, const Vector &first, u64 count, u32 block, u32 num_blocks, u32 thread) {
    const u64 tile = (u64)OG_THREADS * AT_ONCE, step = num_blocks * tile;
    u64 from = block * tile + thread, address = start + from * 16, base = POSITION * 2 * from, done = 0;
    OG_ROLLED
    for (; done + step <= count; done += step) {
        Vector v[AT_ONCE];
        OG_UNROLL
        for (int k = 0; k < AT_ONCE; k++) v[k] = load_dense<ALIGNED>(address + (u64)k * OG_THREADS * 16, shift);
        while (!s.differs) { /* at most once round: but as a loop, so that it stays a branch and no predicate on sixteen instructions */
            OG_UNROLL
            for (int k = 0; k < AT_ONCE; k++) s.differs |= difference(v[k], first);
            if (num_blocks) break;
        }
        OG_UNROLL
        for (int k = 0; k < AT_ONCE; k++)
            hash_vector<DIGESTS, STATISTICS, HOW>(s, v[k], base + POSITION * 2 * (u64)k * OG_THREADS);
        address += step * 16;
        base += POSITION * 2 * step;
    }
    return done;
}

/* All whole vectors of dense memory: what is left over by full tiles is dealt out by single vectors, three loads ahead. */
template <int DIGESTS, bool STATISTICS, int HOW, int AT_ONCE, bool ALIGNED> OG_DEVICE void dense_vectors(Sums &s, const Work &work, u64 count) {
    const u32 shift = work.data & 15;
    const u64 start = work.data - shift;
    Vector first = ALIGNED ? load_vector(start) : load_bytes(work.data, work.item_bytes);
    first = repeated(first, work.item_bytes);
    u64 done = 0;
    if (work.num_threads == OG_THREADS) done = full_tiles<DIGESTS, STATISTICS, HOW, AT_ONCE, ALIGNED>(s, start, shift, first, count, work.block, work.num_blocks, work.thread);
    u64 index = done + work.block * work.num_threads + work.thread;
    if (index >= count || work.thread >= work.num_threads) return;
    const u64 stride = work.num_blocks * work.num_threads;
    u64 ahead = index;
    Vector a = load_dense<ALIGNED>(start + ahead * 16, shift);
    if (ahead + stride < count) ahead += stride; /* past the end: the last one again */
    Vector b = load_dense<ALIGNED>(start + ahead * 16, shift);
    if (ahead + stride < count) ahead += stride;
    Vector c = load_dense<ALIGNED>(start + ahead * 16, shift);
    OG_ROLLED
    for (;;) {
        if (ahead + stride < count) ahead += stride;
        Vector d = load_dense<ALIGNED>(start + ahead * 16, shift);
        s.differs |= difference(a, first);
        hash_vector<DIGESTS, STATISTICS, HOW>(s, a, POSITION * 2 * index);
        index += stride;
        if (index >= count) return;
        a = b, b = c, c = d;
    }
}

template <int DIGESTS, bool STATISTICS, int HOW, int AT_ONCE> OG_DEVICE void dense_of(Sums &s, const Work &work, u64 count) {
    if (work.data & 15)
        dense_vectors<DIGESTS, STATISTICS, HOW, AT_ONCE, false>(s, work, count);
    else
        dense_vectors<DIGESTS, STATISTICS, HOW, AT_ONCE, true>(s, work, count);
}

template <int DIGESTS, bool STATISTICS> OG_OUTLINED Sums last_of(Vector v, u64 index, u32 bytes, u32 how, const u32 *table) {
    Sums s = {0, 0, 0, 0, 0, 0, 0, 0};
    last_vector<DIGESTS, STATISTICS>(s, v, index, bytes, how, table);
    return s;
}

template <int DIGESTS, bool STATISTICS> OG_DEVICE void walk_dense(Sums &s, const Work &work) {
    u64 bytes = work.numel * work.item_bytes, count = bytes / 16;
    u32 rest = bytes & 15;
    if (rest && work.block == work.num_blocks - 1 && work.thread == 0) {
        Vector first = repeated(load_bytes(work.data, work.item_bytes), work.item_bytes), v = load_bytes(work.data + count * 16, rest);
        s = last_of<DIGESTS, STATISTICS>(v, count, rest, work.how, work.table);
        s.differs |= difference(v, first, rest);
    }
    if (!count) return;
    if constexpr (DIGESTS == NO_ELEMENT_DIGESTS) {
        dense_of<DIGESTS, STATISTICS, OG_F32, OG_AT_ONCE>(s, work, count); /* bytes are bytes */
    } else switch (work.how) {
    case OG_F32: dense_of<DIGESTS, STATISTICS, OG_F32, OG_AT_ONCE>(s, work, count); return;
    case OG_BF16: dense_of<DIGESTS, STATISTICS, OG_BF16, OG_AT_ONCE>(s, work, count); return;
    default: dense_of<DIGESTS, STATISTICS, OG_F16, OG_AT_ONCE>(s, work, count);
    }
}

OG_OUTLINED u32 divided(u32 a, u32 b) { return a / b; }

/* Where element `index` of the view lies, and how many elements of its innermost row there are from it on. */
struct Place {
    u64 address, left;
};

OG_OUTLINED Place locate(u64 data, const og_dim *dims, u32 num_dims, u64 index) {
    Place place = {data, 1};
    u64 rest = index;
    OG_ROLLED
    for (int d = (int)num_dims - 1; d >= 0; d--) {
        u64 size = dims[d].size, outer = 0;
        if (d) outer = rest >> 32 ? rest / size : high_product(rest, dims[d].reciprocal);
        u64 here = rest - outer * size;
        place.address += here * (u64)dims[d].stride;
        if (d == (int)num_dims - 1) place.left = size - here;
        rest = outer;
    }
    return place;
}

/* One element of 1, 2, 4 or 8 bytes (of 16: its first or second half); any address. */
template <int BYTES> OG_DEVICE u64 load_item(u64 address, bool aligned) {
    if (!aligned && BYTES > 1 && address & (BYTES - 1)) {
        u64 w = 0;
        OG_ROLLED
        for (int k = 0; k < BYTES; k++) w |= (u64)load8(address + k) << 8 * k;
        return w;
    }
    return BYTES == 1 ? load8(address) : BYTES == 2 ? load16(address) : BYTES == 4 ? load32(address) : load64(address);
}

/* Element `k` of a vector put at its place. */
template <int BYTES> OG_DEVICE void put(Vector &v, int k, u64 code) {
    if (BYTES == 8) {
        v.word[2 * k] = low32(code), v.word[2 * k + 1] = high32(code);
    } else {
        v.word[k * BYTES / 4] |= (u32)code << 8 * (k * BYTES % 4);
    }
}

/* The elements from `index` on that make one vector; those past `end` read 0. */
template <int BYTES> OG_DEVICE Vector gather_items(u64 data, const og_dim *dims, u32 num_dims, u64 index, u64 end) {
    Vector v = {{0, 0, 0, 0}};
    Place place = locate(data, dims, num_dims, index);
    u64 stride = num_dims ? (u64)dims[num_dims - 1].stride : 0;
    const bool in_row = place.left >= 16 / BYTES && index + 16 / BYTES <= end;
    if (in_row && stride == BYTES && !(place.address & 15)) return load_vector(place.address);
    if (in_row && !((place.address | stride) & (BYTES - 1))) { /* all loads at once */
        u64 codes[16 / BYTES];
        OG_UNROLL
        for (int k = 0; k < 16 / BYTES; k++) codes[k] = load_item<BYTES>(place.address + (u64)k * stride, true);
        OG_UNROLL
        for (int k = 0; k < 16 / BYTES; k++) put<BYTES>(v, k, codes[k]);
        return v;
    }
    u64 low = 0, high = 0;
    OG_ROLLED
    for (int k = 0; k < 16 / BYTES && index + k < end; k++) {
        if ((u64)k >= place.left) { /* on to the next row */
            place = locate(data, dims, num_dims, index + k);
            place.address -= (u64)k * stride, place.left += k;
        }
        u64 code = load_item<BYTES>(place.address + (u64)k * stride, false);
        if (k * BYTES < 8)
            low |= code << 8 * (k * BYTES & 7);
        else
            high |= code << 8 * (k * BYTES & 7);
    }
    return Vector{{low32(low), high32(low), low32(high), high32(high)}};
}

OG_OUTLINED Vector gather_vector(u64 data, const og_dim *dims, u32 num_dims, u32 item_bytes, u64 index, u64 end) {
    switch (item_bytes) {
    case 1: return gather_items<1>(data, dims, num_dims, index, end);
    case 2: return gather_items<2>(data, dims, num_dims, index, end);
    case 4: return gather_items<4>(data, dims, num_dims, index, end);
    case 8: return gather_items<8>(data, dims, num_dims, index, end);
    }
    u64 address = locate(data, dims, num_dims, index).address;
    u64 low = load_item<8>(address, false), high = load_item<8>(address + 8, false);
    return Vector{{low32(low), high32(low), low32(high), high32(high)}};
}

OG_DEVICE Vector gather(const Work &work, u64 index) {
    return gather_vector(work.data, work.dims, work.num_dims, work.item_bytes, index, work.first + work.numel);
}

OG_DEVICE Vector first_element(const Work &work) { return flipped(repeated(gather(work, work.first), work.item_bytes), work); }

/* The `index`th vector, whole or the last one, as it was read. */
template <int DIGESTS, bool STATISTICS> OG_DEVICE void read_vector(Sums &s, const Work &work, Vector v, u64 index, const Vector &first) {
    u64 bytes = work.numel * work.item_bytes - index * 16;
    v = flipped(v, work);
    if (bytes >= 16) {
        s.differs |= difference(v, first);
        any_vector<DIGESTS, STATISTICS>(s, v, index, work.how, work.table);
        return;
    }
    OG_UNROLL
    for (u32 k = 0; k < 4; k++) { /* the flip went past the end */
        u32 kept = bytes > 4 * k ? (u32)bytes - 4 * k : 0;
        if (kept < 4) v.word[k] &= (1u << 8 * kept) - 1;
    }
    s.differs |= difference(v, first, (u32)bytes);
    last_vector<DIGESTS, STATISTICS>(s, v, index, (u32)bytes, work.how, work.table);
}

/* Everything that is not tiled and not worth a loop of its own. */
template <int DIGESTS, bool STATISTICS> OG_OUTLINED Sums walk_vectors(Work work) {
    Sums s = {0, 0, 0, 0, 0, 0, 0, 0};
    u64 bytes = work.numel * work.item_bytes, count = (bytes + 15) / 16, per_vector = 16 / work.item_bytes;
    const bool dense = work.path == OG_DENSE;
    Vector first = dense ? repeated(load_bytes(work.data, work.item_bytes), work.item_bytes) : first_element(work);
    OG_ROLLED
    for (u64 index = (u64)work.block * work.num_threads + work.thread; index < count && work.thread < work.num_threads; index += (u64)work.num_blocks * work.num_threads) {
        u64 left = bytes - index * 16;
        Vector v = dense ? load_bytes(work.data + index * 16, left < 16 ? (u32)left : 16) : gather(work, work.first + index * per_vector);
        read_vector<DIGESTS, STATISTICS>(s, work, v, index, first);
    }
    return s;
}
