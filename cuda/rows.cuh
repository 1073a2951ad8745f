/* Views whose innermost rows are whole vectors of dense memory: the heads of attention, a slice of the last dimension, columns left out.
 *
 * Each vector lies in one row and is aligned, so it is one load; where its row begins is worked out while two others are on their way.
 */
#pragma once

#include "walks.cuh"

OG_DEVICE Vector row_vector(const Work &work, u64 index, u32 per_vector) {
    return load_vector(locate(work.data, work.dims, work.num_dims, index * per_vector).address);
}

template <int DIGESTS, int HOW> OG_OUTLINED Sums rows_of(Work work) {
    Sums s = {0, 0, 0, 0, 0, 0, 0, 0};
    const u32 per_vector = 16 / work.item_bytes;
    const u64 count = work.numel / per_vector, stride = (u64)work.num_blocks * work.num_threads;
    u64 index = (u64)work.block * work.num_threads + work.thread, ahead = index;
    if (index >= count || work.thread >= work.num_threads) return s;
    const Vector first = repeated(load_vector(work.data), work.item_bytes);
    Vector a = row_vector(work, ahead, per_vector);
    if (ahead + stride < count) ahead += stride; /* past the end: the last one again */
    Vector b = row_vector(work, ahead, per_vector);
    OG_ROLLED
    do {
        if (ahead + stride < count) ahead += stride;
        Vector c = row_vector(work, ahead, per_vector);
        s.differs |= difference(a, first);
        hash_vector<DIGESTS, false, HOW>(s, a, POSITION * 2 * index);
        index += stride;
        a = b, b = c;
    } while (index < count);
    return s;
}

/* Whether rows of this dtype have a loop; the others are gathered. */
template <int DIGESTS> OG_DEVICE bool has_rows(const Work &work) {
    return work.path == OG_ROWS && (DIGESTS == NO_ELEMENT_DIGESTS || (work.how >= OG_F32 && work.how <= OG_F16));
}

template <int DIGESTS> OG_DEVICE Sums walk_rows(const Work &work) {
    if (DIGESTS == NO_ELEMENT_DIGESTS || work.how == OG_F32) return rows_of<DIGESTS, OG_F32>(work);
    if (work.how == OG_BF16) return rows_of<DIGESTS, OG_BF16>(work);
    return rows_of<DIGESTS, OG_F16>(work);
}
