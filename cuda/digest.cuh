/* spec.md on 16 logical bytes at a time: mixers, widening, sums.
 *
 * What bounds these loops on an H200 is the integer pipe, so they are written for few instructions: 64-bit words as pairs of
 * registers (a shift by 32 is free, K2 costs one multiply-add), one wide multiply-add per use of a narrow word, positions as a
 * running base plus constants.
 */
#pragma once

#include "device.cuh"

#define POSITION 0x9E3779B97F4A7C15ull /* C of spec.md */
#define SPREAD 0xD6E8FEB86659FD93ull   /* K1 */
#define OFFSET 0xA0761D6478BD642Full   /* K0 */
#define FEED_HIGH 0x85EBCA6Bu          /* high word of K2, whose low word is 1 */
#define SCATTER 0x85EBCA77u            /* N */
#define FOLD 0xC2B2AE3D27D4EB4Full     /* F */

enum { ALL_DIGESTS, NO_VALUE, NO_ELEMENT_DIGESTS };

struct Sums {
    u64 mix, value, bag, bytes_xor; /* before finishing */
    u32 differs;                    /* nonzero: some element is not the first one */
    u32 nans, infs, largest;        /* statistics; `largest`: the bits of max |x|, which order like integers */
};

OG_DEVICE void add(Sums &s, const Sums &t) {
    s.mix += t.mix, s.value += t.value, s.bag += t.bag, s.bytes_xor ^= t.bytes_xor;
    s.differs |= t.differs, s.nans += t.nans, s.infs += t.infs;
    if (t.largest > s.largest) s.largest = t.largest;
}

OG_DEVICE u32 low32(u64 x) { return (u32)x; }
OG_DEVICE u32 high32(u64 x) { return (u32)(x >> 32); }
OG_DEVICE u64 join(u32 low, u32 high) { return (u64)high << 32 | low; }

/* What M and G share after their first multiplication. */
OG_DEVICE u64 spread(u64 x) {
    u32 high = high32(x), low = low32(x) ^ high;
    high += low * FEED_HIGH;
    return join(low ^ high, high);
}

OG_DEVICE u64 times_spread(u64 x, u64 addend) {
    u64 product = multiply_add(low32(x), low32(SPREAD), addend);
    u32 high = low32(x) * high32(SPREAD) + high32(product);
    return join(low32(product), high32(x) * low32(SPREAD) + high);
}

OG_DEVICE u64 mix_lane(u64 x) { return spread(times_spread(x ^ (x >> 29), 0)); }
OG_DEVICE u64 mix_element(u64 x) { return spread(times_spread(x ^ (x >> 32), OFFSET)); }
OG_DEVICE u64 finish(u64 sum, u64 count) { return mix_lane(sum + FOLD * (count + 1)); }

/* binary16, in the high half of `h`, to binary32 bits. The product is exact and moves the exponent's bias; subnormals become
 * normal in it. Infinity and NaN go through it as ordinary numbers, so that no payload is quieted. */
OG_DEVICE u32 widen_f16(u32 h) {
    u32 magnitude = h >> 3 & 0x0FFFE000u;
    u32 bits = float_bits(multiply(bits_float(magnitude), bits_float(0x77800000u))); /* 2^112 */
    if (magnitude >= 0x0F800000u) bits |= 0x7F800000u;
    return bits | (h & 0x80000000u);
}

/* The words of the 256 codes of an 8-bit float, by the rules of spec.md section 3. */
OG_DEVICE u32 widen_float8(u32 code, u32 format) {
    if (format == OG_E5M2) return widen_f16(code << 24);
    if (format == OG_E8M0FNU) return code == 0 ? 0x00400000u : code == 255 ? 0x7F800001u : code << 23;
    u32 sign = (code & 0x80u) << 24, magnitude = code & 0x7Fu;
    if (format == OG_E4M3FN && magnitude == 0x7F) return sign | 0x7FF00000u;
    if (format != OG_E4M3FN && code == 0x80) return 0x7F800001u;
    /* 8-bit exponent and mantissa at binary32's places, then the bias moved by an exact product */
    u32 mantissa_bits = format == OG_E5M2FNUZ ? 2 : 3, bias = format == OG_E5M2FNUZ ? 16 : format == OG_E4M3FNUZ ? 8 : 7;
    float scale = bits_float((254 - bias) << 23); /* 2^(127 - bias) */
    return sign | float_bits(multiply(bits_float(magnitude << (23 - mantissa_bits)), scale));
}

template <bool STATISTICS> OG_DEVICE void note_narrow(Sums &s, u32 e) {
    if (!STATISTICS) return;
    u32 magnitude = e & 0x7FFFFFFFu;
    s.nans += magnitude > 0x7F800000u;
    s.infs += magnitude == 0x7F800000u;
    if (magnitude <= 0x7F800000u && magnitude > s.largest) s.largest = magnitude;
}

/* `how` as in og_view; OG_B64 stands for unknown bits, of which nothing is noted. */
template <bool STATISTICS> OG_DEVICE void note_wide(Sums &s, u64 e, u32 how) {
    if (!STATISTICS || how == OG_B64) return;
    u32 magnitude;
    if (how == OG_F64) {
        u64 bits = e & ~(1ull << 63);
        s.infs += bits == 0x7FF0000000000000ull;
        if (bits > 0x7FF0000000000000ull) {
            s.nans++;
            return;
        }
        magnitude = float_bits((float)bits_double(bits));
    } else {
        bool is_signed = how == OG_I8 || how == OG_I16 || how == OG_I32 || how == OG_I64;
        magnitude = float_bits((float)(is_signed && e >> 63 ? 0 - e : e));
    }
    if (magnitude > s.largest) s.largest = magnitude;
}

/* A narrow word: x = e*N + K0, its halves a and (xored) b; bag64's term at once. */
OG_DEVICE u64 narrow_word(Sums &s, u32 e) {
    u64 x = multiply_add(e, SCATTER, OFFSET);
    u64 ab = join(low32(x), low32(x) ^ high32(x));
    s.bag = multiply_add(low32(ab), high32(ab), s.bag);
    return ab;
}

/* Two narrow words of one pair, whose position is `p`. */
template <int DIGESTS, bool STATISTICS> OG_DEVICE void narrow_pair(Sums &s, u32 e, u32 f, u64 p) {
    note_narrow<STATISTICS>(s, e);
    note_narrow<STATISTICS>(s, f);
    if (DIGESTS == NO_ELEMENT_DIGESTS) return;
    u64 first = narrow_word(s, e), second = narrow_word(s, f);
    if (DIGESTS == ALL_DIGESTS)
        s.value = multiply_add(low32(first) + high32(second) + low32(p), low32(second) - high32(first) + high32(p), s.value);
}

template <int DIGESTS, bool STATISTICS> OG_DEVICE void wide_word(Sums &s, u64 e, u64 p, u32 how) {
    note_wide<STATISTICS>(s, e, how);
    if (DIGESTS == NO_ELEMENT_DIGESTS) return;
    u64 hashed = mix_element(e), t = hashed ^ p;
    s.bag += hashed;
    if (DIGESTS == ALL_DIGESTS) s.value = multiply_add(low32(t), high32(t), s.value);
}

/* Both components of one vector of 8-byte words; `base`: C times the number of components before it. */
template <int DIGESTS, bool STATISTICS> OG_DEVICE void wide_vector(Sums &s, const Vector &v, u64 base, u32 how) {
    wide_word<DIGESTS, STATISTICS>(s, join(v.word[0], v.word[1]), base + POSITION, how);
    wide_word<DIGESTS, STATISTICS>(s, join(v.word[2], v.word[3]), base + 2 * POSITION, how);
}

/* All components of one vector of small integers. Rolled up: they are rare, and ten copies of it cost seconds of compile time. */
template <int DIGESTS, bool STATISTICS> OG_DEVICE void integer_vector(Sums &s, const Vector &v, u64 index, u32 how) {
    const u32 bits = how <= OG_I8 ? 8 : how <= OG_I16 ? 16 : 32;
    const bool is_signed = how == OG_I8 || how == OG_I16 || how == OG_I32;
    u64 left = join(v.word[0], v.word[1]), position = POSITION * (index * (128 / bits) + 1);
    OG_ROLLED
    for (u32 at = 0; at < 128; at += bits) {
        if (at == 64) left = join(v.word[2], v.word[3]);
        u64 e = left & ~(~0ull << bits);
        if (is_signed && e >> (bits - 1)) e |= ~0ull << bits;
        wide_word<DIGESTS, STATISTICS>(s, e, position, how);
        left >>= bits;
        position += POSITION;
    }
}

/* The same for 8-bit floats. */
template <int DIGESTS, bool STATISTICS> OG_DEVICE void float8_vector(Sums &s, const Vector &v, u64 index, const u32 *table) {
    u64 left = join(v.word[0], v.word[1]), position = POSITION * (index * 8 + 1);
    OG_ROLLED
    for (u32 k = 0; k < 8; k++) {
        if (k == 4) left = join(v.word[2], v.word[3]);
        narrow_pair<DIGESTS, STATISTICS>(s, table[left & 255], table[left >> 8 & 255], position);
        left >>= 16;
        position += POSITION;
    }
}

template <int HOW> OG_DEVICE u32 narrow_code(const Vector &v, int k) {
    if (HOW == OG_F32) return v.word[k];
    u32 high = k & 1 ? v.word[k / 2] : v.word[k / 2] << 16; /* its high half is the code */
    return HOW == OG_BF16 ? high & 0xFFFF0000u : widen_f16(high);
}

/* All components of one vector as narrow words; `base`: C times the number of pairs before it. */
template <int DIGESTS, bool STATISTICS, int HOW> OG_DEVICE void narrow_vector(Sums &s, const Vector &v, u64 base) {
    OG_UNROLL
    for (int k = 0; k < (HOW == OG_F32 ? 4 : 8); k += 2)
        narrow_pair<DIGESTS, STATISTICS>(s, narrow_code<HOW>(v, k), narrow_code<HOW>(v, k + 1), base + POSITION * (u64)(k / 2 + 1));
}

/* The two lanes of one vector; `base`: C times the number of lanes before it. */
OG_DEVICE void lanes(Sums &s, const Vector &v, u64 base) {
    u64 first = join(v.word[0], v.word[1]), second = join(v.word[2], v.word[3]);
    s.mix += mix_lane(first + (base + POSITION)) + mix_lane(second + (base + 2 * POSITION));
    s.bytes_xor ^= first ^ second;
}

/* One whole vector of any dtype, the `index`th. */
template <int DIGESTS, bool STATISTICS> OG_DEVICE void any_vector(Sums &s, const Vector &v, u64 index, u32 how, const u32 *table) {
    u64 base = POSITION * index;
    lanes(s, v, base * 2);
    if (DIGESTS == NO_ELEMENT_DIGESTS && !STATISTICS) return;
    switch (how) {
    case OG_F32: narrow_vector<DIGESTS, STATISTICS, OG_F32>(s, v, base * 2); return;
    case OG_BF16: narrow_vector<DIGESTS, STATISTICS, OG_BF16>(s, v, base * 4); return;
    case OG_F16: narrow_vector<DIGESTS, STATISTICS, OG_F16>(s, v, base * 4); return;
    case OG_B64: case OG_F64: case OG_I64: wide_vector<DIGESTS, STATISTICS>(s, v, base * 2, how); return;
    }
    if (how < OG_B64)
        integer_vector<DIGESTS, STATISTICS>(s, v, index, how);
    else
        float8_vector<DIGESTS, STATISTICS>(s, v, index, table);
}

/* The last `bytes` (1 to 15) of an array, zero above them. Slow and short: one thread of a launch goes through here. */
template <int DIGESTS, bool STATISTICS> OG_DEVICE void last_vector(Sums &s, const Vector &v, u64 index, u32 bytes, u32 how, const u32 *table) {
    u64 base = POSITION * index, first = join(v.word[0], v.word[1]), second = join(v.word[2], v.word[3]);
    s.mix += mix_lane(first + (base * 2 + POSITION));
    if (bytes > 8) s.mix += mix_lane(second + (base * 2 + 2 * POSITION));
    s.bytes_xor ^= first ^ second;
    if (DIGESTS == NO_ELEMENT_DIGESTS && !STATISTICS) return;
    bool halves = how == OG_BF16 || how == OG_F16 || how == OG_U16 || how == OG_I16, quarters = how == OG_F32 || how == OG_U32 || how == OG_I32;
    u32 size = halves ? 2 : quarters ? 4 : how == OG_B64 || how == OG_F64 || how == OG_I64 ? 8 : 1;
    u32 per_vector = 16 / size, components = bytes / size;
    bool is_narrow = how >= OG_F32 && how < OG_F64;
    u32 even = 0;
    OG_ROLLED
    for (u32 k = 0; k < (is_narrow ? components + (components & 1) : components); k++) {
        u64 shifted = k * size < 8 ? first >> 8 * (k * size & 7) : second >> 8 * (k * size & 7);
        u64 code = size == 8 ? shifted : shifted & ~(~0ull << 8 * size);
        if (!is_narrow) {
            bool is_signed = how == OG_I8 || how == OG_I16 || how == OG_I32;
            if (is_signed && code >> (8 * size - 1)) code |= ~0ull << (8 * size - 1);
            wide_word<DIGESTS, STATISTICS>(s, code, base * per_vector + POSITION * (k + 1), how);
            continue;
        }
        /* past the end: the zero that fills up a pair, no element */
        u32 e = k == components ? 0 : how == OG_F32 ? (u32)code : how == OG_BF16 ? (u32)code << 16 : how == OG_F16 ? widen_f16((u32)code << 16) : table[code];
        if (k & 1) narrow_pair<DIGESTS, STATISTICS>(s, even, e, base * (per_vector / 2) + POSITION * (k / 2 + 1));
        even = e;
    }
    if (DIGESTS != NO_ELEMENT_DIGESTS && is_narrow && components & 1) s.bag -= (u64)low32(OFFSET) * (low32(OFFSET) ^ high32(OFFSET));
}
