/* The background thread of one device: copies finished records to pinned memory on a stream of its own and hands them to `delivery`.
 *
 * It looks at the ring's position, copies what is new, checks each entry (one that is torn fails its check and is copied again), tells the
 * device what it has consumed. It holds no GIL and waits for no stream but its own.
 */
#ifndef OPGUARD_COPIER_H
#define OPGUARD_COPIER_H

#include "device.h"

/* Between looks: when somebody waits, while records are on their way, otherwise. Each look takes the driver's locks for a moment. */
static const int64_t WAITED_FOR_NS = 100000, USUAL_NS = 2000000, IDLE_NS = 5000000;
static const int64_t STUCK_NS = 10000000000;
enum { COPIES_OF_TORN = 4, AT_A_TIME = 64 };

static int copy_down(Device *device, void *to, uint64_t from, size_t bytes) {
    int error = driver.cuMemcpyDtoHAsync_v2(to, from, bytes, device->copy_stream);
    device->copies++;
    return error ? error : finish_copies(device);
}

static int is_whole(const og_entry *entry, uint64_t position) {
    uint64_t words[sizeof(og_record) / 8];
    memcpy(words, &entry->record, sizeof words);
    return og_check(words, position) == entry->check;
}

/* With the mutex held: this ticket is lost, wherever it stands. */
static void lose_way(Device *device, Way *way) {
    uint64_t ticket = way->ticket;
    device->on_way -= way->records;
    if (way->stream != NO_STREAM) device->streams[way->stream].on_way--;
    settle(&delivery, way);
    give_up(&delivery, ticket, 1);
}

/* With the mutex held: everything on its way from this device, or, of one stream, what is older than a ticket that has arrived. */
static void lose_ways(Device *device, uint16_t stream, uint64_t below) {
    for (uint64_t ticket = delivery.oldest; ticket < below && ticket < delivery.next_ticket; ticket++) {
        Way *way = &delivery.ways[ticket % NUM_WAYS];
        if (way->ticket != ticket || way->device != device->ordinal || (stream != NO_STREAM && way->stream != stream)) continue;
        uint64_t records = way->records;
        lose_way(device, way);
        device->unaccounted -= device->unaccounted < records ? device->unaccounted : records;
    }
}

/* The device found the ring full and says how many records it left out, not which. A stream's records come in the order of its tickets, so
 * one that arrives tells that older ones of its stream will not. */
static void deliver_some(Device *device, const og_entry *entries, uint64_t n, uint64_t *free_again) {
    pthread_mutex_lock(&delivery.mutex);
    for (uint64_t k = 0; k < n; k++) {
        const og_record *record = &entries[k].record;
        Way *way = &delivery.ways[record->ticket % NUM_WAYS];
        if (way->ticket == record->ticket) {
            *free_again += 1;
            if (device->unaccounted) lose_ways(device, way->stream, record->ticket);
        }
        uint64_t holes = delivery.count_holes;
        uint16_t stream = arrived(&delivery, record);
        if (stream != NO_STREAM) device->streams[stream].on_way--;
        holes = delivery.count_holes - holes;
        device->unaccounted -= device->unaccounted < holes ? device->unaccounted : holes;
    }
    pthread_cond_broadcast(&delivery.changed);
    pthread_mutex_unlock(&delivery.mutex);
}

/* A few at a time: the training's thread may be waiting for the mutex. */
static void deliver(Device *device, const og_entry *entries, uint64_t n, uint64_t *free_again) {
    for (uint64_t k = 0; k < n; k += AT_A_TIME) deliver_some(device, entries + k, n - k < AT_A_TIME ? n - k : AT_A_TIME, free_again);
}

static uint64_t room_in_queue(void) {
    pthread_mutex_lock(&delivery.mutex);
    uint64_t room = queue_room(&delivery);
    pthread_mutex_unlock(&delivery.mutex);
    return room > 2 * MOST_HOLES ? room - 2 * MOST_HOLES : 0;
}

/* Copy n entries from `consumed` on and deliver the whole ones at their front; their number, or -1 with the error. */
static int64_t fetch(Device *device, uint64_t n, uint64_t *free_again, int *error) {
    uint64_t place = device->consumed & (device->capacity - 1), whole = 0;
    for (int attempt = 0; attempt < COPIES_OF_TORN && whole < n; attempt++) {
        if ((*error = copy_down(device, device->staging + whole, device->entries + (place + whole) * sizeof(og_entry),
                                (size_t)(n - whole) * sizeof(og_entry))))
            return -1;
        while (whole < n && is_whole(&device->staging[whole], device->consumed + whole)) whole++;
        if (whole < n) device->retries++;
    }
    if (whole) deliver(device, device->staging, whole, free_again);
    return (int64_t)whole;
}

/* Tell the device, and only then let `submit` count on the room: the device decides by what it knows. */
static int publish(Device *device, uint64_t *free_again) {
    device->mailbox[MAILBOX_CONSUMED] = device->consumed;
    int error = driver.cuMemcpyHtoDAsync_v2(device->ring + offsetof(og_ring, consumed), (const void *)&device->mailbox[MAILBOX_CONSUMED], 8,
                                            device->copy_stream);
    if (error || (error = finish_copies(device))) return error;
    pthread_mutex_lock(&delivery.mutex);
    device->on_way -= *free_again;
    *free_again = 0;
    pthread_cond_broadcast(&delivery.changed);
    pthread_mutex_unlock(&delivery.mutex);
    return 0;
}

static void note_lost(Device *device, uint64_t lost) {
    if (lost == device->lost_seen) return;
    pthread_mutex_lock(&delivery.mutex);
    device->unaccounted += lost - device->lost_seen;
    device->lost_seen = lost;
    pthread_mutex_unlock(&delivery.mutex);
}

/* Nothing is finished that has not been copied, and as much was left out as is on its way: then that is it. With captured launches about,
 * the number may be theirs. */
static void give_up_rest(Device *device) {
    pthread_mutex_lock(&delivery.mutex);
    if (device->unaccounted && !device->captured && device->unaccounted == device->on_way) {
        lose_ways(device, NO_STREAM, UINT64_MAX);
        pthread_cond_broadcast(&delivery.changed);
    }
    pthread_mutex_unlock(&delivery.mutex);
}

/* An entry that was claimed but never written: its kernel was killed. */
static void pass_stuck(Device *device) {
    if (!device->stuck_since_ns) {
        device->stuck_since_ns = (uint64_t)now_ns();
    } else if (now_ns() - (int64_t)device->stuck_since_ns > STUCK_NS) {
        device->consumed++, device->stuck_since_ns = 0;
        pthread_mutex_lock(&delivery.mutex);
        device->unaccounted++;
        pthread_mutex_unlock(&delivery.mutex);
    }
}

/* One look at the ring. The number of records delivered, or -1 with the driver's error. */
static int64_t drain(Device *device, int *error) {
    uint64_t free_again = 0, total = 0;
    if ((*error = copy_down(device, (void *)device->mailbox, device->ring, sizeof(og_ring)))) return -1;
    uint64_t position = device->mailbox[offsetof(og_ring, position) / 8];
    note_lost(device, device->mailbox[offsetof(og_ring, lost) / 8]);
    while (device->consumed < position) {
        uint64_t n = position - device->consumed, to_end = device->capacity - (device->consumed & (device->capacity - 1));
        uint64_t room = room_in_queue();
        n = n < to_end ? n : to_end;
        n = n < STAGING_ENTRIES ? n : STAGING_ENTRIES;
        n = n < room ? n : room;
        if (!n) break;
        int64_t whole = fetch(device, n, &free_again, error);
        if (whole < 0) return -1;
        device->consumed += (uint64_t)whole, total += (uint64_t)whole;
        if (whole) device->stuck_since_ns = 0;
        if ((uint64_t)whole < n) pass_stuck(device);
        if ((*error = publish(device, &free_again))) return -1;
        if ((uint64_t)whole < n) break; /* the kernel is writing it, or the copy was torn: look again later */
    }
    if (device->unaccounted && device->consumed == position) give_up_rest(device);
    return (int64_t)total;
}

static void fail(Device *device, int error) {
    pthread_mutex_lock(&delivery.mutex);
    snprintf(device->failed, sizeof device->failed, "device %d failed: %s", device->ordinal, error_name(&driver, error));
    lose_ways(device, NO_STREAM, UINT64_MAX);
    pthread_cond_broadcast(&delivery.changed);
    pthread_mutex_unlock(&delivery.mutex);
}

static void *copier(void *opaque) {
    Device *device = opaque;
    int mode = CAPTURE_MODE_RELAXED, error = 0;
    pthread_setname_np(pthread_self(), "opguard-copier");
    driver.cuCtxSetCurrent(device->context);
    driver.cuThreadExchangeStreamCaptureMode(&mode); /* a capture of the user's must not be ended by a query of ours */
    for (;;) {
        pthread_mutex_lock(&delivery.mutex);
        int expects = device->on_way || device->captured;
        struct timespec until = deadline(!expects ? IDLE_NS : device->num_waiting ? WAITED_FOR_NS : USUAL_NS);
        while (!device->is_urgent && !device->is_ending && pthread_cond_timedwait(&device->hurry, &delivery.mutex, &until) == 0) continue;
        device->is_urgent = 0;
        expects = device->on_way || device->captured;
        int is_ending = device->is_ending;
        pthread_mutex_unlock(&delivery.mutex);
        if (is_ending || is_forked) return NULL;
        if (!expects || drain(device, &error) >= 0) continue;
        if (!device->is_ending) fail(device, error);
        return NULL;
    }
}

/* With the mutex held: look now. */
static void hurry(Device *device) {
    if (device->is_urgent) return;
    device->is_urgent = 1;
    pthread_cond_signal(&device->hurry);
}

#endif
