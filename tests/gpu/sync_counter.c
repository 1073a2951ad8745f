/* Counts the calls of a process that make a host thread wait for the device, by function and kind of thread.
 *
 * Two ways in, one file: preloaded it stands before the CUDA runtime that torch links; linked against libcuda.so.1 and named in
 * OPGUARD_LIBCUDA it stands before the driver for whoever loads the driver through that variable. Kinds of threads: the one that
 * `counter_is_training` was called on, autograd's own ("pt_autograd..."), all others.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <string.h>

enum { DEVICE, STREAM, EVENT, COPY, ALLOCATE, NUM_FUNCTIONS };
enum { TRAINING, AUTOGRAD, OTHER, NUM_THREADS };
static long counts[NUM_FUNCTIONS][NUM_THREADS];
static pthread_t training;

void counter_is_training(void) { training = pthread_self(); }
void counter_reset(void) { memset(counts, 0, sizeof counts); }
void counter_read(long *out) { memcpy(out, counts, sizeof counts); }

static void count(int function) {
    char name[16] = "";
    int thread = OTHER;
    if (pthread_equal(pthread_self(), training)) thread = TRAINING;
    else if (pthread_getname_np(pthread_self(), name, sizeof name) == 0 && !strncmp(name, "pt_autograd", 11)) thread = AUTOGRAD;
    __atomic_fetch_add(&counts[function][thread], 1, __ATOMIC_RELAXED);
}

#ifdef FOR_DRIVER
static void *real(const char *name) {
    static void *library;
    if (!library) library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    return library ? dlsym(library, name) : NULL;
}
#else
static void *real(const char *name) {
    void *found = dlsym(RTLD_NEXT, name);
    if (found) return found;
    /* torch's libraries are local to the one who loaded them: ask the runtime that is loaded. */
    static const char *runtimes[] = {"libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0"};
    for (unsigned at = 0; at < sizeof runtimes / sizeof *runtimes; at++) {
        void *library = dlopen(runtimes[at], RTLD_NOLOAD | RTLD_NOW);
        if (library && (found = dlsym(library, name))) return found;
    }
    return NULL;
}
#endif

#define FAILED 999 /* cudaErrorUnknown, CUDA_ERROR_UNKNOWN */
#define WATCH(function, name, parameters, arguments)           \
    int name parameters {                                      \
        static int(*call) parameters;                          \
        if (!call) call = (int(*) parameters)real(#name);      \
        count(function);                                       \
        return call ? call arguments : FAILED;                 \
    }

#ifdef FOR_DRIVER
typedef unsigned long long address;
WATCH(DEVICE, cuCtxSynchronize, (void), ())
WATCH(STREAM, cuStreamSynchronize, (void *stream), (stream))
WATCH(EVENT, cuEventSynchronize, (void *event), (event))
WATCH(COPY, cuMemcpyDtoH_v2, (void *to, address from, size_t size), (to, from, size))
WATCH(COPY, cuMemcpyHtoD_v2, (address to, const void *from, size_t size), (to, from, size))
WATCH(COPY, cuMemcpy, (address to, address from, size_t size), (to, from, size))
WATCH(COPY, cuMemsetD8_v2, (address to, unsigned char value, size_t size), (to, value, size))
WATCH(ALLOCATE, cuMemAlloc_v2, (address *out, size_t size), (out, size))
WATCH(ALLOCATE, cuMemFree_v2, (address at), (at))
WATCH(ALLOCATE, cuMemHostAlloc, (void **out, size_t size, unsigned flags), (out, size, flags))
WATCH(ALLOCATE, cuMemFreeHost, (void *at), (at))
#else
WATCH(DEVICE, cudaDeviceSynchronize, (void), ())
WATCH(STREAM, cudaStreamSynchronize, (void *stream), (stream))
WATCH(EVENT, cudaEventSynchronize, (void *event), (event))
WATCH(COPY, cudaMemcpy, (void *to, const void *from, size_t size, int kind), (to, from, size, kind))
WATCH(ALLOCATE, cudaMalloc, (void **out, size_t size), (out, size))
WATCH(ALLOCATE, cudaFree, (void *at), (at))
WATCH(ALLOCATE, cudaHostAlloc, (void **out, size_t size, unsigned flags), (out, size, flags))
WATCH(ALLOCATE, cudaFreeHost, (void *at), (at))

struct attributes { int type, device; void *on_device, *on_host; void *reserved[8]; };

/* A copy to or from memory that is not pinned makes the host wait; one between devices or pinned memory does not. */
int cudaMemcpyAsync(void *to, const void *from, size_t size, int kind, void *stream) {
    static int (*call)(void *, const void *, size_t, int, void *);
    static int (*ask)(struct attributes *, const void *);
    if (!call) call = (int (*)(void *, const void *, size_t, int, void *))real("cudaMemcpyAsync");
    if (!ask) ask = (int (*)(struct attributes *, const void *))real("cudaPointerGetAttributes");
    const void *host = kind == 1 ? from : kind == 2 ? to : NULL;
    if (host && ask) {
        struct attributes told = {0};
        if (ask(&told, host) == 0 && told.type == 0) count(COPY); /* cudaMemoryTypeUnregistered */
    }
    return call ? call(to, from, size, kind, stream) : FAILED;
}
#endif
