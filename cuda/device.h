/* One device as the launcher has it: memory of ours, the streams it has seen, room for captured launches.
 *
 * All device memory is taken once, in one piece, and zeroed: capture forbids allocations, and memory of a captured launch must stay for as
 * long as its graph may be replayed, which nobody tells. So it stays until the process ends (freeing it would wait for the device anyway).
 */
#ifndef OPGUARD_DEVICE_H
#define OPGUARD_DEVICE_H

#include <time.h>

#include "delivery.h"
#include "driver.h"
#include "plan.h"

enum {
    MAX_DEVICES = 64,
    NUM_STREAMS = 256, /* that can be told apart at a time; one whose launches have all arrived can make way */
    STREAM_WINDOW = 16,
    STAGING_ENTRIES = 4096,
    STREAM_SCRATCH = (64 + 64 * OG_MAX_SEGMENTS + 255) / 256 * 256,
    MAILBOX_WORDS = 16,
    MAILBOX_CONSUMED = 8 /* the copier's word for the device; the ring's header is copied to the words before it */
};

typedef struct {
    uint64_t id;
    uint32_t on_way; /* tickets */
} Stream;

typedef struct Device {
    int ordinal, is_open, num_sms;
    volatile int is_ending;
    void *context, *copy_stream;
    void *kernels[OG_NUM_KERNELS];
    uint64_t memory, ring, entries, scratch, sites, sites_end; /* device addresses; `sites` is the next free one */
    uint64_t device_bytes, pinned_bytes;
    uint32_t capacity;
    og_entry *staging;          /* pinned */
    volatile uint64_t *mailbox; /* pinned */
    Stream streams[NUM_STREAMS];
    uint64_t on_way;            /* records booked whose place in the ring the device may not know to be free */
    uint64_t consumed, lost_seen, unaccounted;
    uint64_t stalled_at;        /* `consumed` when waiting for room last failed, + 1; 0 if it did not */
    uint64_t stuck_since_ns;
    int num_waiting, is_urgent;
    pthread_t copier;
    pthread_cond_t hurry;
    char failed[200];
    /* counted under the mutex */
    uint64_t launches, copies, retries, waits, captured;
} Device;

static Driver driver;
static Delivery delivery;
static Device devices[MAX_DEVICES];
static volatile int is_forked;
static _Thread_local char last_error[256];

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static struct timespec deadline(int64_t from_now_ns) {
    int64_t at = now_ns() + from_now_ns;
    return (struct timespec){at / 1000000000, at % 1000000000};
}

/* Our own stream only: polled, because a wait inside the driver would count as a synchronisation and could hold its locks. */
static int finish_copies(Device *device) {
    for (;;) {
        int error = driver.cuStreamQuery(device->copy_stream);
        if (error != CUDA_NOT_READY || device->is_ending) return error; /* whoever ends us must not wait for a device that hangs */
        struct timespec pause = {0, 10000};
        nanosleep(&pause, NULL);
    }
}

/* Make the device's context current if it is not; `leave` undoes that. */
static int enter(const Device *device, int *pushed) {
    void *now = NULL;
    *pushed = 0;
    int error = driver.cuCtxGetCurrent(&now);
    if (error || now == device->context) return error;
    error = driver.cuCtxPushCurrent_v2(device->context);
    *pushed = !error;
    return error;
}

static void leave(int pushed) {
    void *was;
    if (pushed) driver.cuCtxPopCurrent_v2(&was);
}

/* With the mutex held: the place of a stream in the table, by its id: a handle may be given again to a new stream while kernels of the old
 * one still run. NO_STREAM if all places that it may have are busy. */
static uint16_t stream_place(Device *device, uint64_t id) {
    uint32_t base = (uint32_t)(id * 0x9E3779B97F4A7C15ull >> 56), idle = NO_STREAM;
    for (uint32_t k = 0; k < STREAM_WINDOW; k++) {
        uint32_t place = (base + k) % NUM_STREAMS;
        Stream *stream = &device->streams[place];
        if (stream->id == id) return (uint16_t)place;
        if (idle == NO_STREAM && !stream->on_way) idle = place;
    }
    if (idle != NO_STREAM) device->streams[idle].id = id;
    return (uint16_t)idle;
}

static uint64_t stream_id(void *stream) {
    unsigned long long id = 0;
    if (driver.cuStreamGetId && driver.cuStreamGetId(stream, &id) == CUDA_OK) return id + 1;
    return (uint64_t)(uintptr_t)stream + 1;
}

static uint64_t aligned(uint64_t bytes) { return (bytes + 255) / 256 * 256; }

/* With the device's context current and the thread in relaxed capture mode. 0, or the driver's error with what failed in `what`. */
static int take_memory(Device *device, uint32_t capacity, uint64_t site_bytes, const char **what) {
    uint64_t entries = aligned(sizeof(og_ring)), scratch = entries + aligned((uint64_t)capacity * sizeof(og_entry));
    uint64_t sites = scratch + (uint64_t)NUM_STREAMS * STREAM_SCRATCH, all = sites + aligned(site_bytes);
    int error;
    *what = "device memory";
    if ((error = driver.cuMemAlloc_v2(&device->memory, all))) return error;
    device->device_bytes = all, device->capacity = capacity;
    device->ring = device->memory, device->entries = device->memory + entries, device->scratch = device->memory + scratch;
    device->sites = device->memory + sites, device->sites_end = device->memory + all;
    *what = "pinned host memory";
    void *pinned = NULL;
    device->pinned_bytes = STAGING_ENTRIES * sizeof(og_entry) + MAILBOX_WORDS * 8;
    if ((error = driver.cuMemHostAlloc(&pinned, device->pinned_bytes, 0))) return error;
    device->staging = pinned, device->mailbox = (uint64_t *)(device->staging + STAGING_ENTRIES);
    *what = "a stream";
    if ((error = driver.cuStreamCreate(&device->copy_stream, STREAM_NON_BLOCKING))) return error;
    *what = "zeroed memory";
    if ((error = driver.cuMemsetD8Async(device->memory, 0, all, device->copy_stream))) return error;
    return finish_copies(device);
}

/* With the mutex held: zeroed memory for one captured launch, its occurrence counter first; 0 if there is no more. */
static uint64_t site_memory(Device *device, uint32_t segments) {
    uint64_t bytes = (64 + OG_SCRATCH_BYTES(segments) + 63) / 64 * 64, place = device->sites;
    if (place + bytes > device->sites_end) return 0;
    device->sites += bytes;
    return place;
}

#endif
