/* The few calls of the CUDA driver that the launcher needs, found at run time: nothing links to CUDA, no CUDA header is read.
 *
 * None of them waits for a device. What would is not even looked up: the synchronising calls, blocking copies, cuMemFree.
 */
#ifndef OPGUARD_DRIVER_H
#define OPGUARD_DRIVER_H

#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    CUDA_OK = 0,
    CUDA_NOT_READY = 600,
    CAPTURE_NONE = 0,
    CAPTURE_ACTIVE = 1,
    CAPTURE_MODE_RELAXED = 2,
    STREAM_NON_BLOCKING = 1, /* a blocking stream would wait for the legacy stream, and the legacy stream for it */
    ATTRIBUTE_MULTIPROCESSORS = 16
};

/* Source: cuda.h of CUDA 12 and 13; the names carry the version that the header's macros give them. */
#define DRIVER_CALLS(CALL)                                                                                                       \
    CALL(cuInit, (unsigned flags))                                                                                               \
    CALL(cuGetErrorName, (int error, const char **name))                                                                         \
    CALL(cuDeviceGet, (int *device, int ordinal))                                                                                \
    CALL(cuDeviceGetAttribute, (int *value, int attribute, int device))                                                          \
    CALL(cuDevicePrimaryCtxRetain, (void **context, int device))                                                                 \
    CALL(cuCtxGetCurrent, (void **context))                                                                                      \
    CALL(cuCtxSetCurrent, (void *context))                                                                                       \
    CALL(cuCtxPushCurrent_v2, (void *context))                                                                                   \
    CALL(cuCtxPopCurrent_v2, (void **context))                                                                                   \
    CALL(cuMemAlloc_v2, (uint64_t *pointer, size_t bytes))                                                                       \
    CALL(cuMemHostAlloc, (void **pointer, size_t bytes, unsigned flags))                                                         \
    CALL(cuMemsetD8Async, (uint64_t to, unsigned char value, size_t bytes, void *stream))                                        \
    CALL(cuMemcpyDtoHAsync_v2, (void *to, uint64_t from, size_t bytes, void *stream))                                            \
    CALL(cuMemcpyHtoDAsync_v2, (uint64_t to, const void *from, size_t bytes, void *stream))                                      \
    CALL(cuStreamCreate, (void **stream, unsigned flags))                                                                        \
    CALL(cuStreamQuery, (void *stream))                                                                                          \
    CALL(cuStreamIsCapturing, (void *stream, int *status))                                                                       \
    CALL(cuThreadExchangeStreamCaptureMode, (int *mode))                                                                         \
    CALL(cuLaunchKernel, (void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,          \
                          unsigned shared_bytes, void *stream, void **parameters, void **extra))

typedef struct {
    void *library;
#define CALL(NAME, ARGUMENTS) int(*NAME) ARGUMENTS;
    DRIVER_CALLS(CALL)
#undef CALL
    int (*cuStreamGetId)(void *stream, unsigned long long *id); /* since CUDA 12; may be NULL */
} Driver;

/* 0, or -1 with the reason in `why`. */
static int load_driver(Driver *driver, const char *path, char *why, size_t room) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) return snprintf(why, room, "no CUDA driver: %s", dlerror()), -1;
    /* Where the launch shim stands before the driver, our work goes behind it: it is not the program's. */
    void *(*find)(void *, const char *) = (void *(*)(void *, const char *))dlsym(RTLD_DEFAULT, "opguard_shim_dlsym");
    if (!find) find = dlsym;
#define CALL(NAME, ARGUMENTS)                                                                                 \
    if (!(driver->NAME = (int(*) ARGUMENTS)find(library, #NAME)))                                             \
        return snprintf(why, room, "the CUDA driver in %s has no %s: too old", path, #NAME), dlclose(library), -1;
    DRIVER_CALLS(CALL)
#undef CALL
    driver->cuStreamGetId = (int (*)(void *, unsigned long long *))find(library, "cuStreamGetId");
    driver->library = library;
    return 0;
}

static const char *error_name(const Driver *driver, int error) {
    const char *name = NULL;
    return driver->cuGetErrorName(error, &name) == CUDA_OK && name ? name : "an unknown CUDA error";
}

#endif
