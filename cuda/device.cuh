/* The few things that only a GPU can do, each in one place: tests/support/cuda_emulation.h offers the same names on a CPU. */
#pragma once

#include "probe_api.h"

typedef uint64_t u64;
typedef uint32_t u32;
typedef uint16_t u16;
typedef uint8_t u8;

#if defined(OG_EMULATED)
#include "cuda_emulation.h"
#else

#define OG_DEVICE static __device__ __forceinline__
#define OG_OUTLINED static __device__ __noinline__
#define OG_KERNEL(threads, blocks_per_sm) extern "C" __global__ void __launch_bounds__(threads, blocks_per_sm)
#define OG_PARAMETER const __grid_constant__
#define OG_BARRIER() __syncthreads()
#define OG_FENCE() asm volatile("fence.acq_rel.gpu;" ::: "memory") /* __threadfence() is the sequentially consistent one, and slower */
#define OG_SHARED(type, name, count) \
    __shared__ type name##_room[count]; \
    type *const name = name##_room
#if !defined(OG_RESIDENT_BLOCKS)
#define OG_RESIDENT_BLOCKS OG_BLOCKS_PER_SM /* what registers are held down to; another number only for measuring */
#endif
#define OG_UNROLL _Pragma("unroll")
#define OG_ROLLED _Pragma("unroll 1")

struct alignas(16) Vector {
    u32 word[4];
};

/* 16 aligned bytes that are read once: past the first-level cache, whose lines the misaligned path shares between threads. */
OG_DEVICE Vector load_vector(u64 address) {
    Vector v;
    asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3]) : "l"(address));
    return v;
}

OG_DEVICE Vector load_vector_shared_by_threads(u64 address) {
    Vector v;
    asm("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3]) : "l"(address));
    return v;
}

/* 16 aligned bytes into shared memory; there once `copies_done` has returned, for the thread that copied them. */
OG_DEVICE void copy_vector(Vector *shared, u64 address) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((u32)__cvta_generic_to_shared(shared)), "l"(address) : "memory");
#else
    *shared = load_vector(address);
#endif
}

OG_DEVICE void copies_done() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

OG_DEVICE u64 load64(u64 address) {
    u64 w;
    asm("ld.global.nc.u64 %0, [%1];" : "=l"(w) : "l"(address));
    return w;
}

OG_DEVICE u32 load32(u64 address) {
    u32 w;
    asm("ld.global.nc.u32 %0, [%1];" : "=r"(w) : "l"(address));
    return w;
}

OG_DEVICE u32 load16(u64 address) {
    u16 w;
    asm("ld.global.nc.u16 %0, [%1];" : "=h"(w) : "l"(address));
    return w;
}

OG_DEVICE u32 load8(u64 address) {
    u32 w;
    asm("ld.global.nc.u8 %0, [%1];" : "=r"(w) : "l"(address));
    return w;
}

/* Counters that other launches change: from the second-level cache, where atomics are done. */
OG_DEVICE u64 load_counter(u64 address) {
    u64 w;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(w) : "l"(address) : "memory");
    return w;
}

OG_DEVICE void store_vector(u64 address, u64 low, u64 high) { asm volatile("st.global.v2.u64 [%0], {%1, %2};" ::"l"(address), "l"(low), "l"(high) : "memory"); }
OG_DEVICE void store64(u64 address, u64 w) { asm volatile("st.global.u64 [%0], %1;" ::"l"(address), "l"(w) : "memory"); }

/* By instruction: the library's functions ask each time whether the address is in shared memory. */
OG_DEVICE u64 atomic_add(u64 address, u64 x) {
    u64 old;
    asm volatile("atom.relaxed.gpu.global.add.u64 %0, [%1], %2;" : "=l"(old) : "l"(address), "l"(x) : "memory");
    return old;
}

OG_DEVICE u64 atomic_swap_if(u64 address, u64 expected, u64 wanted) {
    u64 old;
    asm volatile("atom.relaxed.gpu.global.cas.b64 %0, [%1], %2, %3;" : "=l"(old) : "l"(address), "l"(expected), "l"(wanted) : "memory");
    return old;
}

/* The same without an answer, which nobody waits for. */
OG_DEVICE void add_to(u64 address, u64 x) { asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" ::"l"(address), "l"(x) : "memory"); }
OG_DEVICE void xor_to(u64 address, u64 x) { asm volatile("red.relaxed.gpu.global.xor.b64 [%0], %1;" ::"l"(address), "l"(x) : "memory"); }
OG_DEVICE void raise_to(u64 address, u64 x) { asm volatile("red.relaxed.gpu.global.max.u64 [%0], %1;" ::"l"(address), "l"(x) : "memory"); }

OG_DEVICE u64 device_clock_ns() {
    u64 t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}

OG_DEVICE void warp_barrier() { __syncwarp(); }
OG_DEVICE bool any_in_warp(bool x) { return __any_sync(0xFFFFFFFFu, x); }
OG_DEVICE u64 shuffle_xor(u64 x, int distance) { return __shfl_xor_sync(0xFFFFFFFFu, x, distance); }
OG_DEVICE u32 shuffle_xor(u32 x, int distance) { return __shfl_xor_sync(0xFFFFFFFFu, x, distance); }

/* One instruction, IMAD.WIDE. Written in C, the compiler knows so much about the bits of x that it adds masks and zeros; as
 * mad.wide it splits the addition off again to build trees of them. A carry chain is left alone. */
OG_DEVICE u64 multiply_add(u32 a, u32 b, u64 c) {
    u32 low, high;
    asm("mad.lo.cc.u32 %0, %2, %3, %4;\n\tmadc.hi.u32 %1, %2, %3, %5;" : "=r"(low), "=r"(high) : "r"(a), "r"(b), "r"((u32)c), "r"((u32)(c >> 32)));
    return (u64)high << 32 | low;
}

OG_DEVICE u32 funnel_right(u32 low, u32 high, u32 bits) { return __funnelshift_r(low, high, bits); }
OG_DEVICE u64 high_product(u64 a, u64 b) { return __umul64hi(a, b); }
OG_DEVICE float bits_float(u32 bits) { return __uint_as_float(bits); }
OG_DEVICE u32 float_bits(float x) { return __float_as_uint(x); }
OG_DEVICE double bits_double(u64 bits) { return __longlong_as_double((long long)bits); }
/* Never flushes a subnormal, whatever the compiler is told. */
OG_DEVICE float multiply(float a, float b) {
    float c;
    asm("mul.rn.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
    return c;
}
#endif
