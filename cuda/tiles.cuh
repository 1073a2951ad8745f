/* Views whose logical rows run across memory (a transposed matrix, or a stack of them), through tiles in shared memory.
 *
 * Any dimension but the innermost may be the one that is dense in memory; rows may begin inside a vector.
 */
#pragma once

#include "walks.cuh"

/* A tile: columns of OG_TILE_ROW_BYTES bytes that are contiguous in memory, and whatever of the next columns a vector that begins in
 * the tile still needs. */
#define TILE_BYTES ((OG_TILE_COLUMNS + 15) * OG_TILE_ROW_BYTES)

struct Tile {
    u64 data;          /* address of its first element */
    u64 index;         /* of that element */
    u64 row_step;      /* elements from a row to the next, in logical order */
    u64 columns_left;  /* to the end of the row, from the tile's first column on */
    u32 rows;          /* that exist */
};

/* Memory into the tile: 16 bytes at a time where all is aligned, else by elements. */
template <int BYTES> OG_OUTLINED void fill_tile(Tile tile, u64 stride, u32 thread, u8 *shared, u32 columns) {
    const u32 rows = OG_TILE_ROW_BYTES / BYTES;
    if (!((tile.data | stride) & 15) && tile.rows == rows) {
        const u32 parts = OG_TILE_ROW_BYTES / 16;
        OG_ROLLED
        for (u32 k = thread; k < columns * parts; k += 4 * OG_THREADS) {
            Vector v[4];
            OG_UNROLL
            for (u32 j = 0; j < 4; j++) {
                u32 place = k + j * OG_THREADS; /* past the end: the last one again, since a load under a condition goes through the stack */
                if (place >= columns * parts) place = columns * parts - 1;
                v[j] = load_vector(tile.data + place / parts * stride + place % parts * 16);
            }
            OG_UNROLL
            for (u32 j = 0; j < 4; j++)
                if (k + j * OG_THREADS < columns * parts) ((Vector *)shared)[k + j * OG_THREADS] = v[j];
        }
        return;
    }
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

OG_DEVICE void fill(const Tile &tile, u64 stride, const Work &work, u8 *shared, u32 columns) {
    switch (work.item_bytes) {
    case 1: fill_tile<1>(tile, stride, work.thread, shared, columns); return;
    case 2: fill_tile<2>(tile, stride, work.thread, shared, columns); return;
    case 4: fill_tile<4>(tile, stride, work.thread, shared, columns); return;
    case 8: fill_tile<8>(tile, stride, work.thread, shared, columns); return;
    default: fill_tile<16>(tile, stride, work.thread, shared, columns);
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

/* A tile without edges whose rows begin with a vector, of 4-byte floats: 32 neighbouring threads read 128 bytes at a time. */
template <int DIGESTS, bool STATISTICS> OG_DEVICE void whole_tile_of_words(Sums &s, const Tile &tile, const u8 *shared, u32 thread, const Vector &first) {
    const u32 row = thread % 32;
    const u64 base = POSITION * 2 * ((tile.index + row * tile.row_step) / 4);
    OG_ROLLED
    for (u32 group = thread / 32; group < OG_TILE_COLUMNS / 4; group += OG_THREADS / 32) {
        const u32 *place = (const u32 *)shared + group * 4 * 32 + row;
        Vector v = {{place[0], place[32], place[64], place[96]}};
        s.differs |= difference(v, first);
        hash_vector<DIGESTS, STATISTICS, OG_F32>(s, v, base + POSITION * 2 * group);
    }
}

/* The same of 2-byte floats; every thread turns two rows at once. */
template <int DIGESTS, bool STATISTICS, int HOW> OG_DEVICE void whole_tile_of_halves(Sums &s, const Tile &tile, const u8 *shared, u32 thread, const Vector &first) {
    const u32 pair = thread % 32;
    const u64 row_step = tile.row_step / 8, index = tile.index / 8 + pair * 2 * row_step;
    OG_ROLLED
    for (u32 group = thread / 32; group < OG_TILE_COLUMNS / 8; group += OG_THREADS / 32) {
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

/* Logical rows run across memory: read memory along its rows, turn in shared memory, hash along the logical ones. A vector belongs to
 * the tile in which it begins; what reaches into the next logical row is gathered. */
template <int DIGESTS, bool STATISTICS> OG_OUTLINED Sums walk_tiles(Work work, u8 *shared) {
    Sums s = {0, 0, 0, 0, 0, 0, 0, 0};
    const u32 rows = OG_TILE_ROW_BYTES / work.item_bytes, per_vector = 16 / work.item_bytes;
    u32 dense = work.path - OG_TILES, inner = work.num_dims - 1;
    u64 num_rows = work.dims[dense].size, num_columns = work.dims[inner].size, stride = (u64)work.dims[inner].stride;
    u64 across = (num_columns + OG_TILE_COLUMNS - 1) / OG_TILE_COLUMNS, down = (num_rows + rows - 1) / rows;
    u64 num_tiles = work.numel / (num_rows * num_columns) * across * down;
    Tile tile;
    tile.row_step = 1;
    for (u32 d = dense + 1; d <= inner; d++) tile.row_step *= work.dims[d].size;
    Vector first = first_element(work);
    OG_ROLLED
    for (u64 t = work.block; t < num_tiles; t += work.num_blocks) {
        u64 rest = t / across, from_column = t % across * OG_TILE_COLUMNS, from_row = rest % down * rows;
        rest /= down;
        tile.data = work.data + from_column * stride + from_row * work.item_bytes;
        tile.index = from_column + from_row * tile.row_step;
        u64 elements = num_columns;
        OG_ROLLED
        for (int d = (int)inner - 1; d >= 0; d--) {
            u64 size = work.dims[d].size;
            if (d != (int)dense) {
                tile.data += rest % size * (u64)work.dims[d].stride;
                tile.index += rest % size * elements;
                rest /= size;
            }
            elements *= size;
        }
        tile.columns_left = num_columns - from_column;
        tile.rows = num_rows - from_row < rows ? (u32)(num_rows - from_row) : rows;
        const bool is_even = !((tile.index | tile.row_step) & (per_vector - 1));
        const u32 wanted = OG_TILE_COLUMNS + (is_even ? 0 : per_vector - 1), columns = tile.columns_left < wanted ? (u32)tile.columns_left : wanted;
        OG_BARRIER();
        fill(tile, stride, work, shared, columns);
        OG_BARRIER();
        if (is_even && tile.rows == rows && columns == OG_TILE_COLUMNS && !(work.flip[0] | work.flip[1])) {
            if (work.item_bytes == 4 && (work.how == OG_F32 || DIGESTS == NO_ELEMENT_DIGESTS)) {
                whole_tile_of_words<DIGESTS, STATISTICS>(s, tile, shared, work.thread, first);
                continue;
            }
            if (work.item_bytes == 2 && (work.how == OG_BF16 || DIGESTS == NO_ELEMENT_DIGESTS)) {
                whole_tile_of_halves<DIGESTS, STATISTICS, OG_BF16>(s, tile, shared, work.thread, first);
                continue;
            }
            if (DIGESTS != NO_ELEMENT_DIGESTS && work.item_bytes == 2 && work.how == OG_F16) {
                whole_tile_of_halves<DIGESTS, STATISTICS, OG_F16>(s, tile, shared, work.thread, first);
                continue;
            }
        }
        OG_ROLLED
        for (u32 k = work.thread; k < rows * (OG_TILE_COLUMNS / per_vector); k += OG_THREADS) {
            u32 row = k % rows;
            u64 begin = tile.index + row * tile.row_step;
            u32 column = (u32)(0 - begin) % per_vector + k / rows * per_vector;
            if (row >= tile.rows || column >= tile.columns_left || column >= OG_TILE_COLUMNS) continue;
            Vector v = column + per_vector <= columns ? turned(shared, work.item_bytes, row, column) : gather(work, begin + column);
            read_vector<DIGESTS, STATISTICS>(s, work, v, (begin + column) / per_vector, first);
        }
    }
    return s;
}
