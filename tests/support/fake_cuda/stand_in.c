/* What stands in for the kernels of fingerprint.cu: the same parameter, the same ring, the digests by the CPU twin's own C.
 *
 * So the launch path is tried with digests that another implementation has worked out. The kernels' own arithmetic is emulated elsewhere.
 */
#include "fake.h"

#include "../../../cuda/plan.h"
#include "../../../opguard_core/fingerprint/fingerprint.c"

#include <time.h>

static const u32 *tables[5];

void stand_in_table(int widening, const u32 *table) { tables[widening - OG_FLOAT8] = table; }

static int widening_of(int widening) {
    if (widening >= OG_F64) return B64;
    return widening >= OG_FLOAT8 ? TABLE8 : widening;
}

/* Regions of views that are not dense cannot be told apart here. */
static void digest(const og_header *header, const og_segment *s, int index, const og_dim *dims, uint32_t digests, og_record *out) {
    Plan plan = {0};
    u64 exchange[6] = {s->data};
    plan.widening = widening_of(s->widening), plan.item_bytes = s->item_bytes, plan.component_bytes = (int32_t)og_component_bytes(s->widening);
    plan.numel = (int64_t)s->numel;
    if (plan.widening == TABLE8) plan.table = tables[s->widening - OG_FLOAT8];
    if (s->path == OG_DENSE) {
        plan.num_dims = 1, plan.shape[0] = plan.numel, plan.strides[0] = s->item_bytes;
    } else {
        const og_dim *d = dims + s->dims;
        plan.num_dims = s->num_dims;
        for (int k = 0; k < s->num_dims; k++) plan.shape[k] = (int64_t)d[k].size, plan.strides[k] = d[k].stride;
        if (header->flipped[index / 32] >> index % 32 & 1) plan.flip[0] = (u64)d[-1].stride, plan.flip[1] = d[-1].size;
    }
    opguard_fingerprint(&plan, exchange);
    *out = (og_record){.mix64 = exchange[0], .xor64 = exchange[3], .flags = exchange[4] ? OG_TRIVIAL : 0, .region = s->region};
    if (digests == 0) out->value64 = exchange[1];
    if (digests < 2) out->bag64 = exchange[2];
    else out->flags |= OG_ELEMENTS_ABSENT;
    if (digests == 1) out->flags |= OG_VALUE64_ABSENT;
}

static u64 claim(og_ring *ring, const og_header *header) {
    u64 n = header->num_segments, seen = __atomic_load_n(&ring->position, __ATOMIC_SEQ_CST);
    do {
        if (seen + n - __atomic_load_n(&ring->consumed, __ATOMIC_SEQ_CST) > header->capacity) {
            __atomic_add_fetch(&ring->lost, n, __ATOMIC_SEQ_CST);
            return UINT64_MAX;
        }
    } while (!__atomic_compare_exchange_n(&ring->position, &seen, seen + n, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
    return seen;
}

/* Scratch is private to launches that can overlap: mark it while in use, and tell of a second user. */
static int hold_scratch(const og_header *header, int held) {
    uint32_t *word = (uint32_t *)(uintptr_t)header->scratch;
    if (!word) return 0;
    uint32_t expected = held ? 0 : 1;
    return !__atomic_compare_exchange_n(word, &expected, (uint32_t)held, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

long long stand_in_overlaps;

static void run(const og_header *header, const og_segment *segments, const og_dim *dims, uint32_t digests, int statistics) {
    og_record records[OG_MAX_SEGMENTS];
    struct timespec t;
    if (hold_scratch(header, 1)) __atomic_add_fetch(&stand_in_overlaps, 1, __ATOMIC_SEQ_CST);
    for (uint32_t k = 0; k < header->num_segments; k++) digest(header, &segments[k], (int)k, dims, digests, &records[k]);
    u64 *counter = (u64 *)(uintptr_t)header->occurrence;
    u64 occurrence = counter ? __atomic_fetch_add(counter, 1, __ATOMIC_SEQ_CST) : 0;
    u64 position = claim((og_ring *)(uintptr_t)header->ring, header);
    clock_gettime(CLOCK_MONOTONIC, &t);
    for (uint32_t k = 0; position != UINT64_MAX && k < header->num_segments; k++) {
        og_record *r = &records[k];
        u64 words[11], place = position + k;
        r->ticket = header->ticket + segments[k].ticket, r->occurrence = occurrence;
        r->t_device_ns = (u64)t.tv_sec * 1000000000u + (u64)t.tv_nsec;
        if (statistics) r->flags |= OG_HAS_STATISTICS, r->nan_count = 1, r->inf_count = 2, r->max_abs = 3;
        memcpy(words, r, sizeof words);
        og_entry *entry = (og_entry *)(uintptr_t)header->entries + (place & (header->capacity - 1));
        entry->record = *r;
        __atomic_store_n(&entry->check, og_check(words, place), __ATOMIC_SEQ_CST);
    }
    if (hold_scratch(header, 0)) __atomic_add_fetch(&stand_in_overlaps, 1, __ATOMIC_SEQ_CST);
}

#define KERNEL(NAME, DIGESTS, STATISTICS)                                                             \
    static void NAME##_few(unsigned grid, unsigned block, void **arguments) {                         \
        const og_launch_few *l = arguments[0];                                                        \
        if (grid == l->header.num_blocks && block == OG_THREADS)                                      \
            run(&l->header, l->segments, l->dims, DIGESTS, STATISTICS);                               \
    }                                                                                                 \
    static void NAME##_many(unsigned grid, unsigned block, void **arguments) {                        \
        const og_launch_many *l = arguments[0];                                                       \
        if (grid == l->header.num_blocks && block == OG_THREADS)                                      \
            run(&l->header, l->segments, l->dims, DIGESTS, STATISTICS);                               \
    }
KERNEL(all, 0, 0)
KERNEL(alls, 0, 1)
KERNEL(bag, 1, 0)
KERNEL(bags, 1, 1)
KERNEL(mix, 2, 0)
KERNEL(mixs, 2, 1)

static const fake_kernel KERNELS[OG_NUM_KERNELS] = {all_few, all_many, alls_few, alls_many, bag_few, bag_many,
                                                    bags_few, bags_many, mix_few, mix_many, mixs_few, mixs_many};

/* The handle that CuPy would hand over for the kernel OG_KERNELS[index]. */
void *stand_in_kernel(int index, int device) {
    size_t size = index % 2 ? sizeof(og_launch_many) : sizeof(og_launch_few);
    return fake_kernel_handle(OG_KERNELS[index], device, KERNELS[index], 1, &size);
}

static void nothing(unsigned grid, unsigned block, void **arguments) { (void)grid, (void)block, (void)arguments; }

/* A kernel without parameters that does nothing. */
void *stand_in_nothing(int device) { return fake_kernel_handle("nothing", device, nothing, 0, NULL); }

/* The kernels themselves, run on this CPU by tests/support/emulated_kernels.cpp. */
static int (*emulate)(const char *name, unsigned grid, unsigned block, void **arguments);
long long stand_in_emulation_failures;

static void run_emulated(const char *name, unsigned grid, unsigned block, void **arguments) {
    if (emulate(name, grid, block, arguments)) __atomic_add_fetch(&stand_in_emulation_failures, 1, __ATOMIC_SEQ_CST);
}

#define EMULATED(NAME)                                                                                                                        \
    static void emulated_##NAME##_few(unsigned grid, unsigned block, void **arguments) { run_emulated("og_" #NAME "_few", grid, block, arguments); } \
    static void emulated_##NAME##_many(unsigned grid, unsigned block, void **arguments) { run_emulated("og_" #NAME "_many", grid, block, arguments); }
EMULATED(all)
EMULATED(alls)
EMULATED(bag)
EMULATED(bags)
EMULATED(mix)
EMULATED(mixs)
#define BOTH(NAME) emulated_##NAME##_few, emulated_##NAME##_many
static const fake_kernel EMULATIONS[OG_NUM_KERNELS] = {BOTH(all), BOTH(alls), BOTH(bag), BOTH(bags), BOTH(mix), BOTH(mixs)};

void *stand_in_emulated_kernel(int index, int device, void *emulator) {
    size_t size = index % 2 ? sizeof(og_launch_many) : sizeof(og_launch_few);
    emulate = (int (*)(const char *, unsigned, unsigned, void **))emulator;
    return fake_kernel_handle(OG_KERNELS[index], device, EMULATIONS[index], 1, &size);
}
