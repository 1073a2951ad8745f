/* Views whose logical rows run across memory (a transposed matrix, or a stack of them), through tiles in shared memory.
 *
 * Any dimension but the innermost may be the one that is dense in memory; rows may begin inside a vector. While one tile is hashed the
 * next is on its way into the other half of the shared memory.
 */
#pragma once

#include "walks.cuh"

/* A tile: columns of OG_TILE_ROW_BYTES bytes that are contiguous in memory, and whatever of the next columns a vector that begins in
 * the tile still needs. */
#define TILE_BYTES ((OG_TILE_COLUMNS + 15) * OG_TILE_ROW_BYTES)

struct Tile {
    u64 data;          /* address of its first element */
    u64 index;         /* of that element */
    u32 rows;          /* that exist */
    u32 columns;       /* of its own, to the end of the row at most */
    u32 loaded;        /* columns that are read: those that its last vectors end in as well */
};

enum { TILES_KNOWN = 4 }; /* descriptions in shared memory: of the tile that is hashed, of the two after it */

struct Room { /* in shared memory */
    Vector halves[2][TILE_BYTES / 16];
    Tile tiles[TILES_KNOWN];
};

/* Memory into the tile by elements. */
template <int BYTES> OG_OUTLINED void fill_by_elements(const Tile &tile, u64 stride, u32 thread, u8 *shared) {
    const u32 rows = OG_TILE_ROW_BYTES / BYTES, columns = tile.loaded;
    OG_ROLLED
    for (u32 k = thread; k < columns * rows; k += 8 * OG_THREADS) {
        u64 codes[8][BYTES == 16 ? 2 : 1];
        OG_UNROLL
        for (u32 j = 0; j < 8; j++) {
            u32 place = k + j * OG_THREADS, row = place % rows, column = place / rows;
            if (row >= tile.rows) row = tile.rows - 1;
            if (column >= columns) column = columns - 1;
            u64 address = tile.data + column * stride + row * BYTES;
            codes[j][0] = load_item<BYTES == 16 ? 8 : BYTES>(address, true);
            if (BYTES == 16) codes[j][BYTES == 16] = load_item<8>(address + 8, true);
        }
        OG_UNROLL
        for (u32 j = 0; j < 8; j++) {
            u32 place = k + j * OG_THREADS;
            if (place >= columns * rows || place % rows >= tile.rows) continue;
            if (BYTES == 1) shared[place] = (u8)codes[j][0];
            if (BYTES == 2) ((u16 *)shared)[place] = (u16)codes[j][0];
            if (BYTES == 4) ((u32 *)shared)[place] = (u32)codes[j][0];
            if (BYTES >= 8) ((u64 *)shared)[place * (BYTES / 8)] = codes[j][0];
            if (BYTES == 16) ((u64 *)shared)[place * 2 + 1] = codes[j][BYTES == 16];
        }
    }
}

/* The vector that begins at (row, column) of the tile and ends within its row. */
template <int BYTES> OG_DEVICE Vector turn(const u8 *shared, u32 row, u32 column) {
    const u8 *place = shared + column * OG_TILE_ROW_BYTES + row * BYTES;
    Vector v = {{0, 0, 0, 0}};
    OG_UNROLL
    for (int k = 0; k < 16 / BYTES; k++) {
        const u8 *item = place + k * OG_TILE_ROW_BYTES;
        put<BYTES>(v, k, BYTES == 1 ? *item : BYTES == 2 ? *(const u16 *)item : BYTES == 4 ? *(const u32 *)item : *(const u64 *)item);
    }
    return v;
}

/* Memory into the tile: 16 bytes at a time where all is aligned, which need not have arrived before `copies_done`. */
OG_DEVICE void fill(const Tile &tile, u64 stride, u32 item_bytes, u32 thread, Vector *half) {
    const u32 parts = OG_TILE_ROW_BYTES / 16;
    if (!((tile.data | stride) & 15) && tile.rows * item_bytes == OG_TILE_ROW_BYTES) {
        const u64 from = tile.data + thread % parts * 16;
        OG_ROLLED
        for (u32 k = thread; k < tile.loaded * parts; k += OG_THREADS) copy_vector(half + k, from + k / parts * stride);
        return;
    }
    switch (item_bytes) {
    case 1: fill_by_elements<1>(tile, stride, thread, (u8 *)half); return;
    case 2: fill_by_elements<2>(tile, stride, thread, (u8 *)half); return;
    case 4: fill_by_elements<4>(tile, stride, thread, (u8 *)half); return;
    case 8: fill_by_elements<8>(tile, stride, thread, (u8 *)half); return;
    default: fill_by_elements<16>(tile, stride, thread, (u8 *)half);
    }
}

OG_DEVICE Vector turned(const u8 *shared, u32 item_bytes, u32 row, u32 column) {
    switch (item_bytes) {
    case 1: return turn<1>(shared, row, column);
    case 2: return turn<2>(shared, row, column);
    case 4: return turn<4>(shared, row, column);
    case 8: return turn<8>(shared, row, column);
    default: return *(const Vector *)(shared + column * OG_TILE_ROW_BYTES + row * 16);
    }
}

/* A tile of whole rows and whole vectors, of 4-byte floats: 32 neighbouring threads read 128 bytes at a time. */
template <int DIGESTS, bool STATISTICS> OG_DEVICE void whole_tile_of_words(Sums &s, const Tile &tile, u64 row_step, const u8 *shared, u32 thread, const Vector &first) {
    const u32 row = thread % 32;
    const u64 base = POSITION * 2 * ((tile.index + row * row_step) / 4);
    OG_ROLLED
    for (u32 group = thread / 32; group < tile.columns / 4; group += OG_THREADS / 32) {
        const u32 *place = (const u32 *)shared + group * 4 * 32 + row;
        Vector v = {{place[0], place[32], place[64], place[96]}};
        s.differs |= difference(v, first);
        hash_vector<DIGESTS, STATISTICS, OG_F32>(s, v, base + POSITION * 2 * group);
    }
}

/* The same of 2-byte floats; every thread turns two rows at once. */
template <int DIGESTS, bool STATISTICS, int HOW> OG_DEVICE void whole_tile_of_halves(Sums &s, const Tile &tile, u64 row_step, const u8 *shared, u32 thread, const Vector &first) {
    const u32 pair = thread % 32;
    row_step /= 8;
    const u64 index = tile.index / 8 + pair * 2 * row_step;
    OG_ROLLED
    for (u32 group = thread / 32; group < tile.columns / 8; group += OG_THREADS / 32) {
        const u32 *place = (const u32 *)shared + group * 8 * 32 + pair;
        Vector even, odd;
        OG_UNROLL
        for (int k = 0; k < 4; k++) {
            u32 w = place[2 * k * 32], x = place[(2 * k + 1) * 32];
            even.word[k] = (w & 0xFFFFu) | x << 16, odd.word[k] = w >> 16 | (x & 0xFFFF0000u);
        }
        s.differs |= difference(even, first) | difference(odd, first);
        u64 base = POSITION * 2 * (index + group);
        hash_vector<DIGESTS, STATISTICS, HOW>(s, even, base);
        hash_vector<DIGESTS, STATISTICS, HOW>(s, odd, base + POSITION * 2 * row_step);
    }
}

/* Elements from a row to the next, in logical order. */
OG_DEVICE u64 row_step_of(const Work &work) {
    u64 step = 1;
    for (u32 d = work.path - OG_TILES + 1; d < work.num_dims; d++) step *= work.dims[d].size;
    return step;
}

/* The `t`th tile of a view; there are less than 2^32. Neighbours in memory come one after the other: blocks that run together then read
 * the same pages. */
OG_OUTLINED Tile tile_at(const Work &work, u64 row_step, u32 t) {
    const u32 rows = OG_TILE_ROW_BYTES / work.item_bytes, per_vector = 16 / work.item_bytes, dense = work.path - OG_TILES, inner = work.num_dims - 1;
    const u64 num_rows = work.dims[dense].size, num_columns = work.dims[inner].size;
    const u32 across = (u32)((num_columns + OG_TILE_COLUMNS - 1) / OG_TILE_COLUMNS), down = (u32)((num_rows + rows - 1) / rows);
    const u32 line = t / down;
    u32 rest = line / across;
    const u64 from_row = (u64)(t - line * down) * rows, from_column = (u64)(line - rest * across) * OG_TILE_COLUMNS;
    Tile tile;
    tile.data = work.data + from_column * (u64)work.dims[inner].stride + from_row * work.item_bytes;
    tile.index = from_column + from_row * row_step;
    u64 elements = num_columns;
    OG_ROLLED
    for (int d = (int)inner - 1; d >= 0; d--) {
        const u64 size = work.dims[d].size;
        if (d != (int)dense) {
            const u32 outer = d ? (u32)high_product(rest, work.dims[d].reciprocal) : 0, here = rest - outer * (u32)size;
            tile.data += here * (u64)work.dims[d].stride;
            tile.index += here * elements;
            rest = outer;
        }
        elements *= size;
    }
    const u64 rows_left = num_rows - from_row, columns_left = num_columns - from_column;
    const u32 wanted = OG_TILE_COLUMNS + ((tile.index | row_step) & (per_vector - 1) ? per_vector - 1 : 0);
    tile.rows = rows_left < rows ? (u32)rows_left : rows;
    tile.columns = columns_left < OG_TILE_COLUMNS ? (u32)columns_left : (u32)OG_TILE_COLUMNS;
    tile.loaded = columns_left < wanted ? (u32)columns_left : wanted;
    return tile;
}

/* A tile by single vectors, those of its edges too. A vector belongs to the tile in which it begins; what reaches into the next logical
 * row is gathered. */
template <int DIGESTS, bool STATISTICS> OG_OUTLINED Sums tile_by_vectors(const Work &work, const Tile &tile, u64 row_step, const u8 *shared, Vector first) {
    Sums s = {0, 0, 0, 0, 0, 0, 0, 0};
    const u32 rows = OG_TILE_ROW_BYTES / work.item_bytes, per_vector = 16 / work.item_bytes;
    OG_ROLLED
    for (u32 k = work.thread; k < rows * (OG_TILE_COLUMNS / per_vector); k += OG_THREADS) {
        u32 row = k % rows;
        u64 begin = tile.index + row * row_step;
        u32 column = (u32)(0 - begin) % per_vector + k / rows * per_vector;
        if (row >= tile.rows || column >= tile.columns) continue;
        Vector v = column + per_vector <= tile.loaded ? turned(shared, work.item_bytes, row, column) : gather(work, begin + column);
        read_vector<DIGESTS, STATISTICS>(s, work, v, (begin + column) / per_vector, first);
    }
    return s;
}

template <int DIGESTS, bool STATISTICS> OG_DEVICE void hash_tile(Sums &s, const Work &work, const Tile &tile, u64 row_step, const u8 *shared, const Vector &first) {
    const u32 rows = OG_TILE_ROW_BYTES / work.item_bytes, per_vector = 16 / work.item_bytes;
    const bool is_even = !((tile.index | row_step | tile.columns) & (per_vector - 1));
    if (is_even && tile.rows == rows && !(work.flip[0] | work.flip[1])) {
        if (work.item_bytes == 4 && (work.how == OG_F32 || DIGESTS == NO_ELEMENT_DIGESTS))
            return whole_tile_of_words<DIGESTS, STATISTICS>(s, tile, row_step, shared, work.thread, first);
        if (work.item_bytes == 2 && (work.how == OG_BF16 || DIGESTS == NO_ELEMENT_DIGESTS))
            return whole_tile_of_halves<DIGESTS, STATISTICS, OG_BF16>(s, tile, row_step, shared, work.thread, first);
        if (DIGESTS != NO_ELEMENT_DIGESTS && work.item_bytes == 2 && work.how == OG_F16)
            return whole_tile_of_halves<DIGESTS, STATISTICS, OG_F16>(s, tile, row_step, shared, work.thread, first);
    }
    add(s, tile_by_vectors<DIGESTS, STATISTICS>(work, tile, row_step, shared, first));
}

/* Logical rows run across memory: read memory along its rows, turn in shared memory, hash along the logical ones. One thread at a time
 * works out where the tile after the next lies. */
template <int DIGESTS, bool STATISTICS> OG_OUTLINED Sums walk_tiles(Work work, Room *room) {
    Sums s = {0, 0, 0, 0, 0, 0, 0, 0};
    const u32 step = work.num_blocks, rows = OG_TILE_ROW_BYTES / work.item_bytes;
    const u64 num_rows = work.dims[work.path - OG_TILES].size, num_columns = work.dims[work.num_dims - 1].size, stride = (u64)work.dims[work.num_dims - 1].stride;
    const u32 num_tiles = (u32)(work.numel / (num_rows * num_columns) * ((num_columns + OG_TILE_COLUMNS - 1) / OG_TILE_COLUMNS) * ((num_rows + rows - 1) / rows));
    if (work.block >= num_tiles) return s;
    const u64 row_step = row_step_of(work);
    if (work.thread % WARP == 0 && work.thread < 2 * WARP) room->tiles[work.thread / WARP] = tile_at(work, row_step, work.block + work.thread / WARP * step);
    const Vector first = first_element(work);
    OG_BARRIER();
    fill(room->tiles[0], stride, work.item_bytes, work.thread, room->halves[0]);
    u32 n = 0;
    OG_ROLLED
    for (u32 t = work.block; t < num_tiles; t += step, n++) {
        copies_done();
        OG_BARRIER(); /* this tile is there, and nobody reads the one before any more */
        if (t + step < num_tiles) fill(room->tiles[(n + 1) % TILES_KNOWN], stride, work.item_bytes, work.thread, room->halves[(n + 1) % 2]);
        if (t + 2 * step < num_tiles && work.thread == n % WARPS * WARP) room->tiles[(n + 2) % TILES_KNOWN] = tile_at(work, row_step, t + 2 * step);
        hash_tile<DIGESTS, STATISTICS>(s, work, room->tiles[n % TILES_KNOWN], row_step, (const u8 *)room->halves[n % 2], first);
    }
    return s;
}
