/* Views whose innermost rows are whole vectors of dense memory: the heads of attention, a slice of the last dimension, columns left out.
 *
 * Each vector lies in one row and is aligned, so it is one load. A thread's vectors are equally far apart in the view, so their row and
 * column are counted on, with carries, and divided out only once. At most four dimensions after merging, less than 2^31 vectors.
 */
#pragma once

#include "walks.cuh"

/* A number of vectors by column, row, plane, and the planes' planes; or how far that is in memory. */
struct Counted {
    u32 column, row, plane;
    u64 bytes;
};

struct Rows {
    Counted at, by;              /* of the next vector, from the view's first; of one step */
    u32 columns, rows, planes;   /* of a row in vectors, of a plane, of what holds planes */
    u64 to_row, to_plane, to_next; /* what a step over the end of a row, a plane and the planes adds to the address */
};

OG_DEVICE Counted counted(u32 vectors, u32 columns, u32 rows, u32 planes, u64 row_bytes, u64 plane_bytes, u64 next_bytes) {
    Counted c;
    u32 rest = divided(vectors, columns), higher;
    c.column = vectors - rest * columns;
    higher = divided(rest, rows);
    c.row = rest - higher * rows;
    rest = divided(higher, planes);
    c.plane = higher - rest * planes;
    c.bytes = c.column * 16ull + c.row * row_bytes + c.plane * plane_bytes + rest * next_bytes;
    return c;
}

OG_DEVICE Rows rows_from(const Work &work, u32 index, u32 stride) {
    const og_dim *inner = work.dims + work.num_dims - 1;
    Rows r;
    r.columns = (u32)(inner->size * work.item_bytes / 16), r.rows = (u32)inner[-1].size, r.planes = work.num_dims > 2 ? (u32)inner[-2].size : 1;
    const u64 row = (u64)inner[-1].stride, plane = work.num_dims > 2 ? (u64)inner[-2].stride : 0, next = work.num_dims > 3 ? (u64)inner[-3].stride : 0;
    r.to_row = row - r.columns * 16ull, r.to_plane = plane - r.rows * row, r.to_next = next - r.planes * plane;
    r.at = counted(index, r.columns, r.rows, r.planes, row, plane, next);
    r.by = counted(stride, r.columns, r.rows, r.planes, row, plane, next);
    return r;
}

OG_DEVICE void step(Rows &r) {
    r.at.bytes += r.by.bytes;
    r.at.column += r.by.column, r.at.row += r.by.row, r.at.plane += r.by.plane;
    if (r.at.column >= r.columns) r.at.column -= r.columns, r.at.row++, r.at.bytes += r.to_row;
    if (r.at.row >= r.rows) r.at.row -= r.rows, r.at.plane++, r.at.bytes += r.to_plane;
    if (r.at.plane >= r.planes) r.at.plane -= r.planes, r.at.bytes += r.to_next;
}

template <int DIGESTS, int HOW> OG_OUTLINED Sums rows_of(Work work) {
    Sums s = {0, 0, 0, 0, 0, 0, 0, 0};
    const u32 count = (u32)(work.numel * work.item_bytes / 16), stride = work.num_blocks * work.num_threads;
    u32 index = work.block * work.num_threads + work.thread, ahead = index;
    if (index >= count || work.thread >= work.num_threads) return s;
    const Vector first = repeated(load_vector(work.data), work.item_bytes);
    Rows r = rows_from(work, index, stride);
    u64 base = POSITION * 2 * index;
    Vector a = load_vector(work.data + r.at.bytes);
    if (ahead + stride < count) ahead += stride, step(r); /* past the end: the last one again */
    Vector b = load_vector(work.data + r.at.bytes);
    OG_ROLLED
    do {
        if (ahead + stride < count) ahead += stride, step(r);
        Vector c = load_vector(work.data + r.at.bytes);
        s.differs |= difference(a, first);
        hash_vector<DIGESTS, false, HOW>(s, a, base);
        index += stride, base += POSITION * 2 * stride;
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
