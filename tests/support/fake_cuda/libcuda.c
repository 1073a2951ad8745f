/* A stand-in for libcuda.so.1 with host memory as the device, so that the launch path runs where there is no card.
 *
 * Each stream is a thread that works off a queue in order, so launches and copies are as asynchronous as on a device. Kernels are host
 * functions that a test registers (fake.h). Calls that would wait on a device, or that capture forbids, are counted: the tests demand zero.
 * Names carry the versions that cuda.h gives them (cuMemAlloc_v2), as in the real library.
 */
#define _GNU_SOURCE
#include "fake.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    OK = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    INVALID_CONTEXT = 201,
    NOT_READY = 600,
    LAUNCH_FAILED = 719,
    CAPTURE_UNSUPPORTED = 900,
    CAPTURE_IMPLICIT = 906
};
enum { MAX_DEVICES = 2, GLOBAL_MODE = 0, RELAXED_MODE = 2, NON_BLOCKING = 1 };

typedef struct Function {
    char name[64];
    fake_kernel run;
    int num_parameters;
    size_t sizes[FAKE_MAX_PARAMETERS];
    int device;
} Function;

typedef enum { LAUNCH, COPY, SET } Kind;

typedef struct Work {
    struct Work *next;
    Kind kind;
    const Function *function;
    unsigned grid, block;
    void *arguments[FAKE_MAX_PARAMETERS];
    void *to;
    const void *from;
    size_t bytes;
    int value, torn;
} Work;

typedef struct Graph {
    Work *first, *last;
    long nodes;
} Graph;

typedef struct Stream {
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    Work *first, *last;
    atomic_long queued, done;
    int held, flags, device, is_theirs;
    uint64_t id;
    Graph *capturing;
    int capture_mode;
} Stream;

typedef struct Context {
    int device;
    Stream *legacy;
} Context;

static Context contexts[MAX_DEVICES] = {{.device = 0}, {.device = 1}};
static _Thread_local Context *current;
static _Thread_local Context *below[8];
static _Thread_local int depth, thread_mode = GLOBAL_MODE;
static atomic_int global_captures, fail_launches, fail_allocations, torn_copies, copies_held, dead;
static atomic_ullong next_id = 1;
static fake_counts counts;
static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;

#define COUNT(FIELD) __atomic_add_fetch(&counts.FIELD, 1, __ATOMIC_SEQ_CST)

/* ---- what tests steer ---- */

void fake_read_counts(fake_counts *out) { *out = counts; }
void fake_clear_counts(void) {
    long long held = counts.device_bytes, pinned = counts.pinned_bytes;
    memset(&counts, 0, sizeof counts);
    counts.device_bytes = held, counts.pinned_bytes = pinned;
}
void fake_fail_launches(int n) { fail_launches = n; }
void fake_fail_allocations(int n) { fail_allocations = n; }
void fake_tear_copies(int n) { torn_copies = n; }
void fake_hold_copies(int held) { copies_held = held; }
void fake_kill_device(int is_dead) { dead = is_dead; }

void *fake_kernel_handle(const char *name, int device, fake_kernel run, int num_parameters, const size_t *sizes) {
    Function *function = calloc(1, sizeof *function);
    snprintf(function->name, sizeof function->name, "%s", name);
    function->run = run, function->device = device, function->num_parameters = num_parameters;
    if (num_parameters) memcpy(function->sizes, sizes, (size_t)num_parameters * sizeof *sizes);
    return function;
}

/* ---- streams ---- */

static void run_work(Work *work) {
    switch (work->kind) {
    case LAUNCH: work->function->run(work->grid, work->block, work->arguments); break;
    case COPY:
        memcpy(work->to, work->from, work->bytes);
        if (work->torn) /* as if the writer had been half way: every second word is from before */
            for (size_t k = 0; k + 16 <= work->bytes; k += 16) memset((char *)work->to + k + 8, 0, 8);
        break;
    case SET: memset(work->to, work->value, work->bytes); break;
    }
}

static void free_work(Work *work) {
    if (work->kind == LAUNCH)
        for (int k = 0; k < work->function->num_parameters; k++) free(work->arguments[k]);
    free(work);
}

static void *serve(void *opaque) {
    Stream *stream = opaque;
    for (;;) {
        pthread_mutex_lock(&stream->mutex);
        while (!stream->first || stream->held) pthread_cond_wait(&stream->changed, &stream->mutex);
        Work *work = stream->first;
        if (!(stream->first = work->next)) stream->last = NULL;
        pthread_mutex_unlock(&stream->mutex);
        while (stream->is_theirs && copies_held && !dead) {
            struct timespec pause = {0, 100000};
            nanosleep(&pause, NULL);
        }
        run_work(work);
        free_work(work);
        stream->done++;
    }
    return NULL;
}

static Stream *make_stream(int device, int flags) {
    Stream *stream = calloc(1, sizeof *stream);
    pthread_mutex_init(&stream->mutex, NULL);
    pthread_cond_init(&stream->changed, NULL);
    stream->device = device, stream->flags = flags, stream->id = next_id++;
    pthread_create(&stream->thread, NULL, serve, stream);
    return stream;
}

static Stream *stream_of(void *handle) {
    if (handle && handle != (void *)1 && handle != (void *)2) return handle;
    Context *context = current ? current : &contexts[0];
    pthread_mutex_lock(&making);
    if (!context->legacy) context->legacy = make_stream(context->device, 0);
    pthread_mutex_unlock(&making);
    return context->legacy;
}

static int push(Stream *stream, Work *work) {
    if (dead) {
        free_work(work);
        return LAUNCH_FAILED;
    }
    if (stream->capturing) {
        Graph *graph = stream->capturing;
        if (graph->last) graph->last->next = work;
        else graph->first = work;
        graph->last = work, graph->nodes++;
        return OK;
    }
    stream->queued++;
    pthread_mutex_lock(&stream->mutex);
    if (stream->last) stream->last->next = work;
    else stream->first = work;
    stream->last = work;
    pthread_cond_broadcast(&stream->changed);
    pthread_mutex_unlock(&stream->mutex);
    return OK;
}

static int forbidden(void) {
    if (!global_captures || thread_mode == RELAXED_MODE) return 0;
    COUNT(capture_violations);
    return 1;
}

void *fake_stream(int device, int flags) { return make_stream(device, flags); }

void fake_hold(void *handle, int held) {
    Stream *stream = stream_of(handle);
    pthread_mutex_lock(&stream->mutex);
    stream->held = held;
    pthread_cond_broadcast(&stream->changed);
    pthread_mutex_unlock(&stream->mutex);
}

void fake_finish(void *handle) { /* for tests: wait until all that was enqueued is done, not counted */
    Stream *stream = stream_of(handle);
    while (stream->done < stream->queued) sched_yield();
}

/* ---- the driver's calls ---- */

int cuInit(unsigned flags) { return flags ? INVALID_VALUE : OK; }
int cuDriverGetVersion(int *version) { return *version = 13000, OK; }
int cuDeviceGetCount(int *count) { return *count = MAX_DEVICES, OK; }
int cuDeviceGet(int *device, int ordinal) { return ordinal < 0 || ordinal >= MAX_DEVICES ? INVALID_VALUE : (*device = ordinal, OK); }
int cuDeviceGetAttribute(int *value, int attribute, int device) { return (void)device, *value = attribute == 16 ? 132 : 1, OK; }

int cuGetErrorName(int error, const char **name) {
    *name = error == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : error == LAUNCH_FAILED ? "CUDA_ERROR_LAUNCH_FAILED" : "CUDA_ERROR_OTHER";
    return OK;
}

int cuDevicePrimaryCtxRetain(void **context, int device) { return *context = &contexts[device], OK; }
int cuCtxGetCurrent(void **context) { return *context = current, OK; }
int cuCtxSetCurrent(void *context) { return current = context, OK; }
int cuCtxPushCurrent_v2(void *context) { return COUNT(pushes), below[depth++] = current, current = context, OK; }
int cuCtxPopCurrent_v2(void **context) {
    if (!depth) return INVALID_CONTEXT;
    if (context) *context = current;
    return current = below[--depth], OK;
}

static int allocate(void **out, size_t bytes) {
    if (fail_allocations > 0 && fail_allocations-- > 0) return OUT_OF_MEMORY;
    if (forbidden()) return CAPTURE_UNSUPPORTED;
    char *memory = malloc(bytes + 4096);
    if (!memory) return OUT_OF_MEMORY;
    memset(memory, 0xA5, bytes + 4096); /* device memory comes with what was in it */
    *(size_t *)memory = bytes;
    *out = memory + 4096;
    return OK;
}

int cuMemAlloc_v2(uint64_t *pointer, size_t bytes) {
    void *memory = NULL;
    int error = allocate(&memory, bytes);
    if (!error) *pointer = (uint64_t)(uintptr_t)memory, COUNT(allocations), __atomic_add_fetch(&counts.device_bytes, (long long)bytes, __ATOMIC_SEQ_CST);
    return error;
}

int cuMemFree_v2(uint64_t pointer) {
    if (forbidden()) return CAPTURE_UNSUPPORTED;
    char *memory = (char *)(uintptr_t)pointer - 4096;
    COUNT(waits); /* freeing waits for the device */
    __atomic_sub_fetch(&counts.device_bytes, (long long)*(size_t *)memory, __ATOMIC_SEQ_CST);
    free(memory);
    return OK;
}

int cuMemHostAlloc(void **pointer, size_t bytes, unsigned flags) {
    (void)flags;
    int error = allocate(pointer, bytes);
    if (!error) __atomic_add_fetch(&counts.pinned_bytes, (long long)bytes, __ATOMIC_SEQ_CST);
    return error;
}

int cuMemFreeHost(void *pointer) {
    char *memory = (char *)pointer - 4096;
    __atomic_sub_fetch(&counts.pinned_bytes, (long long)*(size_t *)memory, __ATOMIC_SEQ_CST);
    free(memory);
    return OK;
}

int cuMemsetD8Async(uint64_t to, unsigned char value, size_t bytes, void *handle) {
    Work *work = calloc(1, sizeof *work);
    work->kind = SET, work->to = (void *)(uintptr_t)to, work->value = value, work->bytes = bytes;
    return push(stream_of(handle), work);
}

int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, void *handle) {
    Work *work = calloc(1, sizeof *work);
    COUNT(copies);
    work->kind = COPY, work->to = to, work->from = (const void *)(uintptr_t)from, work->bytes = bytes;
    if (bytes == 64) COUNT(looks);
    if (bytes > 64 && torn_copies > 0 && torn_copies-- > 0) work->torn = 1;
    return push(stream_of(handle), work);
}

int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *handle) {
    Work *work = calloc(1, sizeof *work);
    COUNT(copies);
    work->kind = COPY, work->to = (void *)(uintptr_t)to, work->from = from, work->bytes = bytes;
    return push(stream_of(handle), work);
}

int cuStreamCreate(void **handle, unsigned flags) {
    if (flags != NON_BLOCKING) COUNT(blocking_streams);
    if (!current) return INVALID_CONTEXT;
    Stream *stream = make_stream(current->device, (int)flags);
    stream->is_theirs = 1;
    return *handle = stream, OK;
}

int cuStreamGetId(void *handle, unsigned long long *id) { return *id = stream_of(handle)->id, OK; }

int cuStreamQuery(void *handle) {
    if (forbidden()) return CAPTURE_UNSUPPORTED;
    Stream *stream = stream_of(handle);
    return dead ? LAUNCH_FAILED : stream->done < stream->queued ? NOT_READY : OK;
}

int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, void *handle,
                   void **parameters, void **extra) {
    (void)shared, (void)extra;
    const Function *known = function;
    Stream *stream = stream_of(handle);
    if (fail_launches > 0 && fail_launches-- > 0) return LAUNCH_FAILED;
    if (!current || current->device != known->device || stream->device != known->device) return INVALID_CONTEXT;
    if (!gx || gy != 1 || gz != 1 || !bx || by != 1 || bz != 1) return INVALID_VALUE;
    COUNT(launches);
    Work *work = calloc(1, sizeof *work);
    work->kind = LAUNCH, work->function = known, work->grid = gx, work->block = bx;
    for (int k = 0; k < known->num_parameters; k++) {
        work->arguments[k] = malloc(known->sizes[k]);
        memcpy(work->arguments[k], parameters[k], known->sizes[k]);
    }
    return push(stream, work);
}

/* ---- waiting: never by us ---- */

int cuCtxSynchronize(void) { return COUNT(waits), OK; }
int cuStreamSynchronize(void *handle) { return COUNT(waits), fake_finish(handle), OK; }
int cuEventSynchronize(void *event) { return (void)event, COUNT(waits), OK; }
int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes) { return COUNT(waits), memcpy(to, (void *)(uintptr_t)from, bytes), OK; }
int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t bytes) { return COUNT(waits), memcpy((void *)(uintptr_t)to, from, bytes), OK; }
int cuMemsetD8_v2(uint64_t to, unsigned char value, size_t bytes) { return COUNT(waits), memset((void *)(uintptr_t)to, value, bytes), OK; }

/* ---- capture and replay ---- */

int cuThreadExchangeStreamCaptureMode(int *mode) {
    int before = thread_mode;
    thread_mode = *mode;
    return *mode = before, OK;
}

int cuStreamIsCapturing(void *handle, int *status) {
    if (!handle && global_captures) return CAPTURE_IMPLICIT;
    return *status = stream_of(handle)->capturing ? 1 : 0, OK;
}

int cuStreamBeginCapture_v2(void *handle, int mode) {
    Stream *stream = handle;
    if (!stream) return CAPTURE_UNSUPPORTED;
    stream->capturing = calloc(1, sizeof(Graph));
    stream->capture_mode = mode;
    if (mode == GLOBAL_MODE) global_captures++;
    return OK;
}

int cuStreamEndCapture(void *handle, void **graph) {
    Stream *stream = handle;
    *graph = stream->capturing;
    stream->capturing = NULL;
    if (stream->capture_mode == GLOBAL_MODE) global_captures--;
    return OK;
}

int cuGraphInstantiateWithFlags(void **executable, void *graph, unsigned long long flags) { return (void)flags, *executable = graph, OK; }

int cuGraphLaunch(void *executable, void *handle) {
    for (Work *node = ((Graph *)executable)->first; node; node = node->next) {
        Work *work = malloc(sizeof *work);
        *work = *node, work->next = NULL;
        if (work->kind == LAUNCH)
            for (int k = 0; k < work->function->num_parameters; k++) {
                work->arguments[k] = malloc(work->function->sizes[k]);
                memcpy(work->arguments[k], node->arguments[k], work->function->sizes[k]);
            }
        push(stream_of(handle), work);
    }
    return OK;
}
