/* Host time of a launch and of a probe, measured in C in one loop, so that both see the same machine. */
#define _GNU_SOURCE
#include <stdint.h>
#include <time.h>

#include "../../cuda/probe_api.h"

typedef int (*launch_call)(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                           void *stream, void **parameters, void **extra);

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Nanoseconds for `number` launches of a kernel without parameters; -1 if one failed. */
int64_t loop_empty(launch_call launch, void *function, void *stream, int number) {
    int64_t begun = now_ns();
    for (int k = 0; k < number; k++)
        if (launch(function, 1, 1, 1, 256, 1, 1, 0, stream, 0, 0)) return -1;
    return now_ns() - begun;
}

/* Nanoseconds for `number` submits of n views each; -1 if one was refused. */
int64_t loop_submit(const og_probe_api *api, int device, void *stream, const og_view *views, int n, uint32_t flags, int number) {
    int64_t begun = now_ns();
    for (int k = 0; k < number; k++)
        if (!api->submit(device, stream, views, n, flags)) return -1;
    return now_ns() - begun;
}

/* Records taken away and forgotten. */
int64_t loop_take(const og_probe_api *api, int64_t wanted, int64_t limit_ns) {
    og_record records[256];
    int64_t taken = 0, begun = now_ns();
    while (taken < wanted && now_ns() - begun < limit_ns) {
        int32_t n = api->take(records, 256);
        taken += n;
        if (!n) api->wait(api->submitted(), 1000000);
    }
    return taken;
}
