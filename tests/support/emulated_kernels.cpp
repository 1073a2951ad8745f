/* cuda/fingerprint.cu as a shared library for CPUs: `og_emulate_kernel` runs one launch to its end, in the calling thread.
 *
 * Build: g++ -std=c++17 -O2 -fPIC -shared -I cuda -I tests/support emulated_kernels.cpp
 */
#define OG_EMULATED 1
#include "../../cuda/fingerprint.cu"

#include "../../cuda/plan.h"

#include <cstdlib>
#include <mutex>
#include <setjmp.h>
#include <ucontext.h>

namespace og_emulation {
enum { STACK_BYTES = 1 << 16, LANES = 32 };

struct Fiber {
    ucontext_t entry;
    jmp_buf here;
    bool is_started, is_done;
    unsigned barriers, exchanges; /* passed so far */
    alignas(16) char stack[STACK_BYTES];
};

Place thread_place, block_place;
static Fiber *fibers;
static u32 current;
static jmp_buf scheduler;
static ucontext_t starter;
static u64 slots[2][OG_THREADS];
static void (*body)(const void *);
static const void *parameter;

/* Let the other fibers run until `passed` says that all of them have come as far. */
static void next() {
    if (!_setjmp(fibers[current].here)) _longjmp(scheduler, 1);
}

void barrier() {
    unsigned mine = ++fibers[current].barriers;
    for (;;) {
        bool all = true;
        for (u32 k = 0; k < OG_THREADS && all; k++) all = fibers[k].is_done || fibers[k].barriers >= mine;
        if (all) return;
        next();
    }
}

u64 exchange(u64 x, int distance) {
    u32 warp = current / LANES * LANES;
    unsigned mine = ++fibers[current].exchanges;
    u64 *shared = slots[mine & 1];
    shared[current] = x;
    for (;;) {
        bool all = true;
        for (u32 k = warp; k < warp + LANES && all; k++) all = fibers[k].exchanges >= mine;
        if (all) return shared[current ^ (u32)distance];
        next();
    }
}

static void start() {
    body(parameter);
    fibers[current].is_done = true;
    _longjmp(scheduler, 1);
}

static void resume(u32 k) {
    current = k;
    thread_place.x = k;
    if (_setjmp(scheduler)) return;
    Fiber &fiber = fibers[k];
    if (fiber.is_started) _longjmp(fiber.here, 1);
    fiber.is_started = true;
    getcontext(&fiber.entry);
    fiber.entry.uc_stack.ss_sp = fiber.stack;
    fiber.entry.uc_stack.ss_size = STACK_BYTES;
    fiber.entry.uc_link = nullptr;
    makecontext(&fiber.entry, start, 0);
    swapcontext(&starter, &fiber.entry);
}

static bool run_block(u32 block) {
    block_place.x = block;
    for (u32 k = 0; k < OG_THREADS; k++) fibers[k].is_started = fibers[k].is_done = false, fibers[k].barriers = fibers[k].exchanges = 0;
    for (u32 left = OG_THREADS, idle = 0; left;) {
        u32 before = left;
        unsigned moved = 0;
        for (u32 k = 0; k < OG_THREADS; k++) {
            if (fibers[k].is_done) continue;
            unsigned was = fibers[k].barriers + fibers[k].exchanges;
            resume(k);
            moved += fibers[k].barriers + fibers[k].exchanges - was;
            left -= fibers[k].is_done;
        }
        idle = left == before && !moved ? idle + 1 : 0;
        if (idle > 2) return false;
    }
    return true;
}
} // namespace og_emulation

#define ENTRY(NAME)                                                                                                  \
    {#NAME "_few", [](const void *p) { NAME##_few(*(const og_launch_few *)p); }, sizeof(og_launch_few)},             \
    {#NAME "_many", [](const void *p) { NAME##_many(*(const og_launch_many *)p); }, sizeof(og_launch_many)}

static const struct {
    const char *name;
    void (*body)(const void *);
    size_t bytes;
} KERNELS[] = {ENTRY(og_all), ENTRY(og_alls), ENTRY(og_bag), ENTRY(og_bags), ENTRY(og_mix), ENTRY(og_mixs)};

static std::mutex one_at_a_time;

/* Run a kernel as cuLaunchKernel would: params[0] points to its one parameter. `reversed`: the last block first.
 * Returns 0; 1 for an unknown name; 2 for another block size than the kernels have; 3 for threads that wait for one another forever. */
extern "C" int og_emulate_kernel_in_order(const char *name, unsigned grid, unsigned block, void **params, int reversed) {
    using namespace og_emulation;
    for (const auto &kernel : KERNELS) {
        if (strcmp(kernel.name, name)) continue;
        if (block != OG_THREADS) return 2;
        std::lock_guard<std::mutex> guard(one_at_a_time);
        if (!fibers) fibers = (Fiber *)aligned_alloc(64, (sizeof(Fiber) * OG_THREADS + 63) / 64 * 64);
        body = kernel.body, parameter = params[0];
        for (unsigned k = 0; k < grid; k++)
            if (!run_block(reversed ? grid - 1 - k : k)) return 3;
        return 0;
    }
    return 1;
}

extern "C" int og_emulate_kernel(const char *name, unsigned grid, unsigned block, void **params) {
    return og_emulate_kernel_in_order(name, grid, block, params, 0);
}

extern "C" unsigned og_emulated_plan(og_planned *out, const og_view *views, unsigned n, unsigned flags, unsigned num_sms) {
    return og_plan(out, views, n, flags, num_sms);
}

extern "C" const char *og_emulated_problem(const og_view *view) { return og_view_problem(view); }
extern "C" const char *og_kernel_name(unsigned kernel) { return OG_KERNELS[kernel]; }
extern "C" uint64_t og_emulated_check(const uint64_t *record, uint64_t position) { return og_check(record, position); }
