/* What device.cuh offers, on a CPU: every thread of a block is a fiber, a barrier or a shuffle lets the others catch up.
 *
 * Blocks run one after another, in an order that the caller may turn around; the fibers of a block run in turn, so the code between two
 * barriers is tried as written, shuffles and shared memory included. What this cannot show: races between threads or blocks, and
 * missing fences.
 */
#pragma once

#include <cstdint>
#include <cstring>
#include <ctime>

#define OG_DEVICE static inline
#define OG_OUTLINED static
#define OG_KERNEL(threads, blocks_per_sm) static void
#define OG_PARAMETER const
#define OG_SHARED(type, name, count)                                            \
    alignas(16) static unsigned char name##_room[sizeof(type) * (count)];       \
    type *const name = (type *)name##_room
#define OG_BARRIER() og_emulation::barrier()
#define OG_FENCE() ((void)0)
#define OG_UNROLL
#define OG_ROLLED

namespace og_emulation {
struct Place {
    u32 x;
};
void barrier();
u64 exchange(u64 x, int distance);
extern Place thread_place, block_place;
} // namespace og_emulation

#define threadIdx og_emulation::thread_place
#define blockIdx og_emulation::block_place

struct alignas(16) Vector {
    u32 word[4];
};

template <class T> static inline T og_load(u64 address) {
    T w;
    memcpy(&w, (const void *)address, sizeof w);
    return w;
}

/* A GPU refuses what is not aligned to its size: so do we. */
template <class T> static inline T og_aligned(u64 address) {
    if (address % sizeof(T)) __builtin_trap();
    return og_load<T>(address);
}

OG_DEVICE Vector load_vector(u64 address) { return og_aligned<Vector>(address); }
OG_DEVICE Vector load_vector_shared_by_threads(u64 address) { return og_aligned<Vector>(address); }
OG_DEVICE void copy_vector(Vector *shared, u64 address) { *shared = load_vector(address); }
OG_DEVICE void copies_done() {}
OG_DEVICE u64 load64(u64 address) { return og_aligned<u64>(address); }
OG_DEVICE u32 load32(u64 address) { return og_aligned<u32>(address); }
OG_DEVICE u32 load16(u64 address) { return og_aligned<u16>(address); }
OG_DEVICE u32 load8(u64 address) { return og_aligned<u8>(address); }
OG_DEVICE u64 load_counter(u64 address) { return __atomic_load_n((u64 *)address, __ATOMIC_SEQ_CST); }
OG_DEVICE void store64(u64 address, u64 w) { __atomic_store_n((u64 *)address, w, __ATOMIC_SEQ_CST); }

OG_DEVICE void store_vector(u64 address, u64 low, u64 high) {
    if (address % 16) __builtin_trap();
    store64(address, low);
    store64(address + 8, high);
}

OG_DEVICE u64 atomic_add(u64 address, u64 x) { return __atomic_fetch_add((u64 *)address, x, __ATOMIC_SEQ_CST); }
OG_DEVICE void add_to(u64 address, u64 x) { __atomic_fetch_add((u64 *)address, x, __ATOMIC_SEQ_CST); }
OG_DEVICE void xor_to(u64 address, u64 x) { __atomic_fetch_xor((u64 *)address, x, __ATOMIC_SEQ_CST); }

OG_DEVICE u64 atomic_swap_if(u64 address, u64 expected, u64 wanted) {
    __atomic_compare_exchange_n((u64 *)address, &expected, wanted, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    return expected;
}

OG_DEVICE void raise_to(u64 address, u64 x) {
    u64 seen = load_counter(address);
    while (seen < x) {
        u64 found = atomic_swap_if(address, seen, x);
        if (found == seen) return;
        seen = found;
    }
}

OG_DEVICE u64 device_clock_ns() {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (u64)t.tv_sec * 1000000000u + (u64)t.tv_nsec;
}

OG_DEVICE u64 shuffle_xor(u64 x, int distance) { return og_emulation::exchange(x, distance); }
OG_DEVICE u32 shuffle_xor(u32 x, int distance) { return (u32)og_emulation::exchange(x, distance); }
OG_DEVICE void warp_barrier() { og_emulation::exchange(0, 0); }
OG_DEVICE bool any_in_warp(bool x) {
    u64 any = x;
    for (int distance = 16; distance; distance /= 2) any |= og_emulation::exchange(any, distance);
    return any;
}
OG_DEVICE u64 multiply_add(u32 a, u32 b, u64 c) { return (u64)a * b + c; }
OG_DEVICE u32 funnel_right(u32 low, u32 high, u32 bits) { return (u32)(((u64)high << 32 | low) >> (bits & 31)); }
OG_DEVICE u64 high_product(u64 a, u64 b) { return (u64)((unsigned __int128)a * b >> 64); }

template <class To, class From> static inline To og_bits(From x) {
    To y;
    memcpy(&y, &x, sizeof y);
    return y;
}

OG_DEVICE float bits_float(u32 bits) { return og_bits<float>(bits); }
OG_DEVICE u32 float_bits(float x) { return og_bits<u32>(x); }
OG_DEVICE double bits_double(u64 bits) { return og_bits<double>(bits); }
OG_DEVICE float multiply(float a, float b) { return a * b; }
