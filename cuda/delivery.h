/* What became of each ticket: on its way, arrived, or lost. Guarded by one mutex, held for some dozen instructions at a time.
 *
 *   submit  -> book     -> `ways`: one entry a ticket that is on its way, by ticket modulo NUM_WAYS
 *   copier  -> arrived  -> `queue`: finished records, in the order in which the device finished them
 *   anybody -> give_up  -> `lost`: ranges of tickets that will not come; `take` hands them out as records with OG_LOST
 *
 * Captured launches are `Site`s instead: they come once a replay, counted by the device, so a replay that is missing shows as a hole.
 * Their records have `reserved` set to 1: more may come with the same ticket.
 */
#ifndef OPGUARD_DELIVERY_H
#define OPGUARD_DELIVERY_H

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "probe_api.h"

enum { NUM_WAYS = 1 << 18, QUEUE_RECORDS = 1 << 18, MOST_HOLES = 4096, NO_STREAM = 0xFFFF };

typedef struct {
    uint64_t ticket; /* 0: free */
    uint16_t stream; /* place in the device's table, NO_STREAM for none */
    uint8_t device, records; /* still to come */
} Way;

typedef struct {
    uint64_t ticket, next; /* next: occurrence that is due, 0 at first */
    uint8_t device, records, due; /* a replay brings `records`, `due` of them still missing */
} Site;

typedef struct {
    uint64_t first, end;
} Range;

typedef struct {
    pthread_mutex_t mutex;
    pthread_cond_t changed; /* something arrived, was lost, or room was made */
    Way *ways;
    og_record *queue;
    uint64_t queue_head, queue_end; /* count up; place modulo QUEUE_RECORDS */
    Range *lost;
    size_t num_lost, room_lost;
    Site *sites; /* ascending tickets: they are handed out in order under the mutex */
    size_t num_sites, room_sites;
    uint64_t next_ticket;   /* the next to hand out; from 1 */
    uint64_t oldest;        /* no ticket below it is on its way */
    uint64_t num_ways;      /* tickets on their way */
    uint64_t count_lost, count_delivered, count_holes;
} Delivery;

static uint64_t queue_room(const Delivery *d) { return QUEUE_RECORDS - (d->queue_end - d->queue_head); }

static int start_delivery(Delivery *d) {
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&d->mutex, NULL);
    pthread_cond_init(&d->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    d->next_ticket = d->oldest = 1;
    d->ways = calloc(NUM_WAYS, sizeof *d->ways); /* pages that are never touched cost nothing */
    d->queue = calloc(QUEUE_RECORDS, sizeof *d->queue);
    return d->ways && d->queue ? 0 : -1;
}

/* Grow an array by doubling; 0 if there is room for one more. */
static int make_room(void **array, size_t *room, size_t used, size_t item) {
    if (used < *room) return 0;
    size_t wanted = *room ? 2 * *room : 256;
    void *larger = realloc(*array, wanted * item);
    if (!larger) return -1;
    *array = larger, *room = wanted;
    return 0;
}

/* With the mutex held: tickets that will never come. */
static void give_up(Delivery *d, uint64_t first, uint64_t n) {
    d->count_lost += n;
    if (d->num_lost && d->lost[d->num_lost - 1].end == first) {
        d->lost[d->num_lost - 1].end += n;
        return;
    }
    if (!make_room((void **)&d->lost, &d->room_lost, d->num_lost, sizeof *d->lost)) d->lost[d->num_lost++] = (Range){first, first + n};
}

static void settle(Delivery *d, Way *way) {
    way->ticket = 0;
    d->num_ways--;
    while (d->oldest < d->next_ticket && d->ways[d->oldest % NUM_WAYS].ticket != d->oldest) d->oldest++;
}

/* With the mutex held: whether n more tickets can be followed; not while one is on its way that is NUM_WAYS older. */
static int can_book(Delivery *d, uint64_t n) {
    if (!d->num_ways) d->oldest = d->next_ticket;
    return d->next_ticket + n - d->oldest <= NUM_WAYS;
}

static void book(Delivery *d, uint64_t first, uint32_t n, int device, uint16_t stream, uint8_t records) {
    for (uint64_t ticket = first; ticket < first + n; ticket++)
        d->ways[ticket % NUM_WAYS] = (Way){ticket, stream, (uint8_t)device, records};
    d->num_ways += n;
}

static int book_sites(Delivery *d, uint64_t first, uint32_t n, int device, uint8_t records) {
    for (uint64_t ticket = first; ticket < first + n; ticket++) {
        if (make_room((void **)&d->sites, &d->room_sites, d->num_sites, sizeof *d->sites)) {
            d->num_sites -= ticket - first;
            return -1;
        }
        d->sites[d->num_sites++] = (Site){ticket, 0, (uint8_t)device, records, records};
    }
    return 0;
}

static Site *find_site(Delivery *d, uint64_t ticket) {
    size_t low = 0, high = d->num_sites;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (d->sites[middle].ticket < ticket) low = middle + 1;
        else high = middle;
    }
    return low < d->num_sites && d->sites[low].ticket == ticket ? &d->sites[low] : NULL;
}

static void enqueue(Delivery *d, const og_record *record) {
    d->queue[d->queue_end++ % QUEUE_RECORDS] = *record;
    d->count_delivered++;
}

/* Replays of a site that left no record: told as lost ones, as far as there is room. */
static void fill_holes(Delivery *d, Site *site, uint64_t occurrence) {
    d->count_holes += occurrence - site->next;
    for (uint64_t k = site->next, told = 0; k < occurrence && told < MOST_HOLES && queue_room(d) > 1; k++, told++)
        d->queue[d->queue_end++ % QUEUE_RECORDS] = (og_record){.ticket = site->ticket, .occurrence = k, .flags = OG_LOST, .reserved = 1};
    site->next = occurrence, site->due = site->records;
}

/* With the mutex held and room in the queue: a valid record. Returns the stream whose ticket this settled, NO_STREAM for none. */
static uint16_t arrived(Delivery *d, const og_record *record) {
    Way *way = &d->ways[record->ticket % NUM_WAYS];
    if (way->ticket == record->ticket) {
        uint16_t stream = way->stream;
        enqueue(d, record);
        if (--way->records) return NO_STREAM;
        settle(d, way);
        return stream;
    }
    Site *site = find_site(d, record->ticket);
    if (!site) return NO_STREAM; /* given up before */
    if (record->occurrence > site->next) fill_holes(d, site, record->occurrence);
    enqueue(d, record);
    d->queue[(d->queue_end - 1) % QUEUE_RECORDS].reserved = 1;
    if (!--site->due) site->next++, site->due = site->records;
    return NO_STREAM;
}

/* With the mutex held. */
static int32_t hand_out(Delivery *d, og_record *out, int32_t max) {
    int32_t n = 0;
    while (n < max && d->queue_head < d->queue_end) out[n++] = d->queue[d->queue_head++ % QUEUE_RECORDS];
    while (n < max && d->num_lost) {
        Range *range = &d->lost[0];
        out[n++] = (og_record){.ticket = range->first++, .flags = OG_LOST};
        if (range->first == range->end) memmove(d->lost, d->lost + 1, --d->num_lost * sizeof *d->lost);
    }
    return n;
}

#endif
