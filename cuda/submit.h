/* `og_probe_api`: launches on the caller's own stream, without the GIL, without waiting for a device.
 *
 * Cost of a submit of up to 64 contiguous views: one launch, four small driver calls, two short critical sections; no allocation.
 */
#ifndef OPGUARD_SUBMIT_H
#define OPGUARD_SUBMIT_H

#include "copier.h"

static const int64_t BACK_PRESSURE_NS = 20000000; /* how long a submit may wait for the copier (not for the device) when the ring is full */

static uint64_t refuse(const char *why) {
    snprintf(last_error, sizeof last_error, "%s", why);
    return 0;
}

static void note_error(const char *what, int error) { snprintf(last_error, sizeof last_error, "%s: %s", what, error_name(&driver, error)); }

/* With the mutex held: whether the ring has room for so many records more, after the copier was told to hurry and given a moment. Launches
 * queue up to about a thousand deep, so a ring this large is full only if the copier does not get to run. */
static int has_room(Device *device, uint64_t records) {
    uint64_t limit = device->captured ? device->capacity / 2 : device->capacity; /* replays claim without asking */
    if (records > limit) return 0;
    if (device->on_way + records > limit - limit / 4) hurry(device);
    if (device->on_way + records <= limit) return 1;
    if (device->stalled_at == device->consumed + 1) return 0; /* waited before, and nothing has moved since */
    struct timespec until = deadline(BACK_PRESSURE_NS);
    device->waits++, device->num_waiting++;
    while (device->on_way + records > limit && !device->failed[0])
        if (pthread_cond_timedwait(&delivery.changed, &delivery.mutex, &until)) break;
    device->num_waiting--;
    int fits = device->on_way + records <= limit;
    device->stalled_at = fits ? 0 : device->consumed + 1;
    return fits;
}

static void lose_range(Device *device, uint64_t first, uint32_t n) {
    pthread_mutex_lock(&delivery.mutex);
    for (uint64_t ticket = first; ticket < first + n; ticket++) {
        Way *way = &delivery.ways[ticket % NUM_WAYS];
        if (way->ticket == ticket) lose_way(device, way);
        else give_up(&delivery, ticket, 1);
    }
    pthread_cond_broadcast(&delivery.changed);
    pthread_mutex_unlock(&delivery.mutex);
}

typedef struct {
    Device *device;
    void *stream;
    uint32_t flags;
    uint64_t scratch; /* of the stream; 0 when capturing: every launch gets its own */
} Target;

/* One launch for views[0 .. n) as far as it can take them; how many it took. */
static uint32_t launch_some(const Target *target, const og_view *views, uint32_t n, uint64_t ticket) {
    og_planned planned;
    Device *device = target->device;
    uint32_t taken = og_plan(&planned, views, n, target->flags, (uint32_t)device->num_sms);
    og_header *header = og_planned_header(&planned);
    header->ring = device->ring, header->entries = device->entries, header->capacity = device->capacity;
    header->ticket = ticket, header->scratch = target->scratch, header->occurrence = 0;
    if (!target->scratch) {
        pthread_mutex_lock(&delivery.mutex);
        uint64_t place = site_memory(device, planned.num_segments);
        pthread_mutex_unlock(&delivery.mutex);
        if (!place) {
            refuse("no room for another captured launch");
            return lose_range(device, ticket, taken), taken;
        }
        header->occurrence = place, header->scratch = place + 64;
    }
    void *parameters[] = {&planned.launch};
    if (!device->kernels[planned.kernel]) {
        refuse("the kernels for these flags were not loaded");
        return lose_range(device, ticket, taken), taken;
    }
    int error = driver.cuLaunchKernel(device->kernels[planned.kernel], planned.grid, 1, 1, OG_THREADS, 1, 1, 0, target->stream, parameters, NULL);
    if (error) {
        note_error("launch", error);
        lose_range(device, ticket, taken);
    } else {
        __atomic_add_fetch(&device->launches, 1, __ATOMIC_RELAXED);
    }
    return taken;
}

static void launch_all(const Target *target, const og_view *views, uint32_t n, uint64_t first) {
    for (uint32_t k = 0; k < n;) {
        const char *problem = og_view_problem(&views[k]);
        if (problem) {
            refuse(problem);
            lose_range(target->device, first + k++, 1);
            continue;
        }
        uint32_t end = k + 1;
        while (end < n && end - k < OG_MAX_SEGMENTS && !og_view_problem(&views[end])) end++;
        k += launch_some(target, &views[k], end - k, first + k);
    }
}

static uint64_t submit_inside(Device *device, void *stream, const og_view *views, uint32_t n, uint32_t flags, int is_captured) {
    uint32_t regions = flags >> OG_REGIONS_SHIFT & 255, records = regions < 2 ? 1 : regions < OG_MAX_SEGMENTS ? regions : OG_MAX_SEGMENTS;
    Target target = {device, stream, flags, 0};
    uint64_t id = is_captured ? 0 : stream_id(stream);
    pthread_mutex_lock(&delivery.mutex);
    if (device->failed[0]) {
        pthread_mutex_unlock(&delivery.mutex);
        return refuse(device->failed);
    }
    int is_booked;
    if (is_captured) {
        uint64_t first = delivery.next_ticket;
        is_booked = !book_sites(&delivery, first, n, device->ordinal, (uint8_t)records);
        device->captured += is_booked ? n : 0;
        delivery.next_ticket += n;
        if (!is_booked) give_up(&delivery, first, n);
        pthread_mutex_unlock(&delivery.mutex);
        if (is_booked) launch_all(&target, views, n, first);
        return first;
    }
    is_booked = has_room(device, (uint64_t)n * records); /* may let go of the mutex: tickets come after it */
    uint64_t first = delivery.next_ticket;
    uint16_t place = is_booked && can_book(&delivery, n) ? stream_place(device, id) : NO_STREAM;
    if (place == NO_STREAM) {
        refuse(is_booked ? "too much is on its way" : "the ring is full");
        delivery.next_ticket += n;
        give_up(&delivery, first, n);
        pthread_mutex_unlock(&delivery.mutex);
        return first;
    }
    book(&delivery, first, n, device->ordinal, place, (uint8_t)records);
    delivery.next_ticket += n;
    device->on_way += (uint64_t)n * records, device->streams[place].on_way += n;
    pthread_mutex_unlock(&delivery.mutex);
    target.scratch = device->scratch + (uint64_t)place * STREAM_SCRATCH;
    launch_all(&target, views, n, first);
    return first;
}

/* ---- og_probe_api ---- */

static uint64_t api_submit(int32_t ordinal, void *stream, const og_view *views, int32_t n, uint32_t flags) {
    if (is_forked) return refuse("the process was forked: the device belongs to its parent");
    if (ordinal < 0 || ordinal >= MAX_DEVICES || !devices[ordinal].is_open) return refuse("the device was not opened");
    if (n < 1) return refuse("nothing to submit");
    Device *device = &devices[ordinal];
    int pushed, status = 0, error = enter(device, &pushed);
    if (error) return note_error("context", error), 0;
    uint64_t first = 0;
    /* An error here is not ours: the legacy stream while another one is captured, where any launch would end the capture. */
    if ((error = driver.cuStreamIsCapturing(stream, &status))) note_error("stream", error);
    else if (status != CAPTURE_NONE && status != CAPTURE_ACTIVE) refuse("the stream's capture was invalidated");
    else first = submit_inside(device, stream, views, (uint32_t)n, flags, status == CAPTURE_ACTIVE);
    leave(pushed);
    return first;
}

static int32_t api_take(og_record *out, int32_t max) {
    if (is_forked || !delivery.ways) return 0;
    pthread_mutex_lock(&delivery.mutex);
    int32_t n = hand_out(&delivery, out, max);
    pthread_mutex_unlock(&delivery.mutex);
    return n;
}

static uint64_t api_submitted(void) {
    if (is_forked || !delivery.ways) return 0;
    pthread_mutex_lock(&delivery.mutex);
    uint64_t n = delivery.next_ticket - 1;
    pthread_mutex_unlock(&delivery.mutex);
    return n;
}

static void all_devices_wait(int by) {
    for (int k = 0; k < MAX_DEVICES; k++) {
        if (!devices[k].is_open) continue;
        devices[k].num_waiting += by;
        if (by > 0) hurry(&devices[k]);
    }
}

/* Returns once the ticket has arrived or was given up, or after so long. */
static void api_wait(uint64_t ticket, int64_t timeout_ns) {
    if (is_forked || !delivery.ways) return;
    struct timespec until = deadline(timeout_ns);
    pthread_mutex_lock(&delivery.mutex);
    all_devices_wait(1);
    while (delivery.ways[ticket % NUM_WAYS].ticket == ticket && ticket)
        if (pthread_cond_timedwait(&delivery.changed, &delivery.mutex, &until)) break;
    all_devices_wait(-1);
    pthread_mutex_unlock(&delivery.mutex);
}

static const char *api_last_error(void) { return last_error; }

static og_probe_api api = {OG_API_VERSION, api_submit, api_take, api_submitted, api_wait, api_last_error};

/* ---- opening and closing ---- */

/* 0, or -1 with the reason in `why`. Not from two threads at once (the module holds the GIL). */
static int open_device(int ordinal, void *const *kernels, uint32_t capacity, uint64_t site_bytes, char *why, size_t room) {
    Device *device = &devices[ordinal];
    int number, pushed = 0, mode = CAPTURE_MODE_RELAXED, error;
    const char *what = "device";
    for (int k = 0; k < OG_NUM_KERNELS; k++) /* further ones may come later, none goes */
        if (kernels[k]) device->kernels[k] = kernels[k];
    if (device->is_open) return 0;
    if ((error = driver.cuDeviceGet(&number, ordinal)) || (error = driver.cuDevicePrimaryCtxRetain(&device->context, number))) goto failed;
    what = "context";
    if ((error = enter(device, &pushed))) goto failed;
    driver.cuThreadExchangeStreamCaptureMode(&mode);
    error = driver.cuDeviceGetAttribute(&device->num_sms, ATTRIBUTE_MULTIPROCESSORS, number);
    if (!error) error = take_memory(device, capacity, site_bytes, &what);
    driver.cuThreadExchangeStreamCaptureMode(&mode);
    leave(pushed);
    if (error) goto failed;
    device->ordinal = ordinal;
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&device->hurry, &monotonic);
    pthread_condattr_destroy(&monotonic);
    device->is_ending = 0;
    if (pthread_create(&device->copier, NULL, copier, device)) return snprintf(why, room, "no thread for the copier of device %d", ordinal), -1;
    return device->is_open = 1, 0;
failed:
    return snprintf(why, room, "%s of device %d: %s", what, ordinal, error_name(&driver, error)), -1;
}

/* With the mutex held: until nothing is on its way any more, or nothing has come for so long. */
static void wait_for_rest(int64_t patience_ns) {
    all_devices_wait(1);
    for (uint64_t left = 0; delivery.num_ways && delivery.num_ways != left;) {
        struct timespec until = deadline(patience_ns);
        left = delivery.num_ways;
        while (delivery.num_ways == left)
            if (pthread_cond_timedwait(&delivery.changed, &delivery.mutex, &until)) break;
    }
    all_devices_wait(-1);
}

static uint64_t ways_of(const Device *device) {
    uint64_t n = 0;
    for (uint64_t ticket = delivery.oldest; delivery.num_ways && ticket < delivery.next_ticket; ticket++)
        n += delivery.ways[ticket % NUM_WAYS].ticket == ticket && delivery.ways[ticket % NUM_WAYS].device == device->ordinal;
    return n;
}

/* Wait for what is on its way, then end the copiers: what has not come by then is lost, and `failed` says how much that was. The memory
 * stays (device.h); graphs that are replayed later find the ring full and go on. */
static void close_devices(int64_t patience_ns) {
    if (is_forked || !delivery.ways) return;
    pthread_mutex_lock(&delivery.mutex);
    wait_for_rest(patience_ns);
    pthread_mutex_unlock(&delivery.mutex);
    for (int k = 0; k < MAX_DEVICES && !is_forked; k++) {
        Device *device = &devices[k];
        if (!device->is_open) continue;
        pthread_mutex_lock(&delivery.mutex);
        device->is_ending = 1;
        pthread_cond_signal(&device->hurry);
        pthread_mutex_unlock(&delivery.mutex);
        pthread_join(device->copier, NULL);
        pthread_mutex_lock(&delivery.mutex);
        uint64_t left = ways_of(device);
        if (!device->failed[0] && left) snprintf(device->failed, sizeof device->failed, "device %d was closed with %llu digests on their way", k, (unsigned long long)left);
        else if (!device->failed[0]) snprintf(device->failed, sizeof device->failed, "device %d was closed", k);
        lose_ways(device, NO_STREAM, UINT64_MAX);
        pthread_mutex_unlock(&delivery.mutex);
    }
}

static void after_fork_in_child(void) { is_forked = 1; }

#endif
