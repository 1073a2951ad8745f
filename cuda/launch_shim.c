/* Sees every piece of work a process hands to the GPU, and which boundary was in flight when it did.
 *
 * Preloaded by the launcher (LD_PRELOAD), so that it stands before every library's calls. Two doors lead to the device: the CUDA runtime, which
 * libraries link against, and the driver, whose functions libraries with a runtime of their own, Triton and CuPy fetch by `dlsym` or
 * `cuGetProcAddress`. Both are covered; where one call leads to the other only the outer one counts. Every call goes on unchanged: arguments,
 * result and, for `dlsym`, the caller that it sees.
 *
 * Nothing is recorded until a capture enables it. A record costs a few stores and one atomic add; names are looked up when records are
 * taken, on another thread. No CUDA headers: signatures and structure layouts are those of CUDA 11 to 13.
 *
 * Cannot see: programs linked statically against a runtime that takes the driver's functions from a table of its own, libraries loaded with
 * RTLD_DEEPBIND, set-user-id programs (the loader drops the preload), nodes that a program adds to a graph itself. What is captured into a
 * graph is recorded then, with the capture's number; the graph, what it becomes when it is made ready, and its end are recorded as notes, so
 * that whoever takes the records knows what a replay runs.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#define VERSION 3
#define NO_BOUNDARY UINT64_MAX
#define OURS (UINT64_MAX - 1) /* work of the capture itself: not recorded */
#define TOKENS (UINT64_C(1) << 62) /* from here on: calls whose event has no number yet */
#define RING_RECORDS (1u << 15)
#define MAX_WORDS 8
#define MAX_OWN 32
#define MAX_NAME 64
#define MAX_GONE_PAST 16
#define MAX_PARAMETERS 48
#define PER_THREAD_STREAM 2u /* CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM */

typedef int status;
typedef struct { unsigned x, y, z; } dim3;

/* From GRAPH_MADE on: no work, but what became of graphs. */
enum kind { KERNEL = 0, COOPERATIVE = 1, GRAPH = 2, COPY = 3, FILL = 4, GRAPH_MADE = 5, GRAPH_READY = 6, GRAPH_GONE = 7 };
enum level { OFF = 0, ALL = 1, GRAPHS_ONLY = 2 };
enum handle_type { NO_HANDLE = 0, HOST_STUB = 1, CU_KERNEL = 2, CU_FUNCTION = 3, GRAPH_EXEC = 4 };

/* One piece of work; mirrored in opguard_core/intercept/shim.py. */
typedef struct {
  _Atomic uint64_t ready; /* its number plus one, once the rest is written */
  uint64_t boundary;      /* event in flight on this thread; without one the newest that was in flight anywhere, NO_BOUNDARY for none */
  uint64_t handle;        /* what was launched */
  uint64_t stream;
  uint64_t bytes;         /* of a copy or a fill; CAPTURED, GRAPH_MADE: the capture's number; GRAPH_READY: the graph it was made from */
  uint32_t kind, handle_type;
  uint32_t num_words, flags;
  uint64_t words[MAX_WORDS]; /* outside all boundaries: arguments that may be device addresses */
} record;

enum flag { ATTRIBUTED = 1, ALL_WORDS = 2 /* every argument was looked at, and `words` had room */, CAPTURED = 4 /* into a graph: has not run */ };

static record ring[RING_RECORDS];
static _Atomic uint64_t claimed, taken, lost, escaped;
static _Atomic uint64_t newest = NO_BOUNDARY;
static atomic_int enabled, capturing; /* a level; captures that have begun and not ended */
static _Atomic uint64_t own[MAX_OWN];
static atomic_int num_own;
static pthread_mutex_t take_lock = PTHREAD_MUTEX_INITIALIZER;
static char gone_past[MAX_GONE_PAST][MAX_NAME]; /* names of what went out past us, the first of them */

/* Preloaded objects get their thread-local variables with the first allocation of every thread: no call to find them. */
#define THREAD_LOCAL static __thread __attribute__((tls_model("initial-exec")))
THREAD_LOCAL uint64_t boundary = NO_BOUNDARY;
THREAD_LOCAL int depth;

/* ---- The functions we stand in front of -------------------------------------------------------------------------------------------------- */

/* X(name): each has a legacy and a per-thread default stream variant. */
#define RUNTIME_FUNCTIONS(X) \
  X(__cudaLaunchKernel, _ptsz) X(cudaLaunchKernel, _ptsz) X(cudaLaunchKernelExC, _ptsz) X(cudaLaunchCooperativeKernel, _ptsz) \
  X(cudaGraphLaunch, _ptsz) X(cudaMemcpyAsync, _ptsz) X(cudaMemcpy, _ptds) X(cudaMemcpy2DAsync, _ptsz) X(cudaMemcpyPeerAsync, _unused) \
  X(cudaMemcpy3DAsync, _ptsz) X(cudaMemsetAsync, _ptsz) X(cudaMemset, _ptds) \
  X(cudaStreamBeginCapture, _ptsz) X(cudaStreamBeginCaptureToGraph, _ptsz) X(cudaStreamEndCapture, _ptsz) \
  X(cudaGraphInstantiate, _unused) X(cudaGraphInstantiateWithFlags, _unused) \
  X(cudaGraphInstantiateWithParams, _ptsz) X(cudaGraphExecUpdate, _unused) X(cudaGraphDestroy, _unused) X(cudaGraphExecDestroy, _unused)
#define DRIVER_FUNCTIONS(X) \
  X(cuLaunchKernel, _ptsz) X(cuLaunchKernelEx, _ptsz) X(cuLaunchCooperativeKernel, _ptsz) X(cuGraphLaunch, _ptsz) \
  X(cuMemcpyAsync, _ptsz) X(cuMemcpyHtoDAsync_v2, _ptsz) X(cuMemcpyDtoHAsync_v2, _ptsz) X(cuMemcpyDtoDAsync_v2, _ptsz) \
  X(cuMemcpyPeerAsync, _ptsz) X(cuMemcpy2DAsync_v2, _ptsz) X(cuMemcpy3DAsync_v2, _ptsz) X(cuMemsetD8Async, _ptsz) \
  X(cuMemsetD16Async, _ptsz) X(cuMemsetD32Async, _ptsz) \
  X(cuStreamBeginCapture, _ptsz) X(cuStreamBeginCapture_v2, _ptsz) X(cuStreamBeginCaptureToGraph, _ptsz) X(cuStreamEndCapture, _ptsz) \
  X(cuGraphInstantiate, _unused) X(cuGraphInstantiate_v2, _unused) X(cuGraphInstantiateWithFlags, _unused) \
  X(cuGraphInstantiateWithParams, _ptsz) X(cuGraphExecUpdate_v2, _unused) X(cuGraphDestroy, _unused) X(cuGraphExecDestroy, _unused)

enum index {
#define X(name, variant) I_##name, I_##name##variant,
  RUNTIME_FUNCTIONS(X) DRIVER_FUNCTIONS(X)
#undef X
      NUM_FUNCTIONS
};

typedef void *(*dlsym_function)(void *, const char *);
static dlsym_function real_dlsym;
static _Atomic(void *) real[NUM_FUNCTIONS];

static const char *const RUNTIMES[] = {"libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0", "libcudart.so"};
static const char *const DRIVERS[] = {"libcuda.so.1", "libcuda.so"};

static void find_dlsym(void) {
  static const char *const versions[] = {"GLIBC_2.34", "GLIBC_2.2.5", "GLIBC_2.17", "GLIBC_2.0"};
  for (unsigned i = 0; !real_dlsym && i < sizeof versions / sizeof *versions; i++) real_dlsym = (dlsym_function)dlvsym(RTLD_NEXT, "dlsym", versions[i]);
}

static void *in_libraries(const char *const *names, size_t count, const char *name) {
  for (size_t i = 0; i < count; i++) {
    void *library = dlopen(names[i], RTLD_LAZY | RTLD_NOLOAD);
    if (!library) continue;
    void *found = real_dlsym(library, name);
    dlclose(library); /* loaded by others already: it stays */
    if (found) return found;
  }
  return NULL;
}

/* The function behind ours. Libraries loaded with RTLD_LOCAL are not found by RTLD_NEXT, so they are asked by name. */
static void *behind(enum index which, const char *name, int is_driver) {
  void *found = atomic_load_explicit(&real[which], memory_order_acquire);
  if (found) return found;
  if (!real_dlsym) find_dlsym();
  found = real_dlsym(RTLD_NEXT, name);
  if (!found) found = is_driver ? in_libraries(DRIVERS, 2, name) : in_libraries(RUNTIMES, 4, name);
  if (found) atomic_store_explicit(&real[which], found, memory_order_release);
  return found;
}

/* ---- Records ------------------------------------------------------------------------------------------------------------------------------ */

static int is_own(uint64_t handle) {
  int count = atomic_load_explicit(&num_own, memory_order_acquire);
  for (int i = 0; i < count; i++)
    if (atomic_load_explicit(&own[i], memory_order_relaxed) == handle) return 1;
  return 0;
}

static record *claim(uint64_t *number) {
  uint64_t at = atomic_load_explicit(&claimed, memory_order_relaxed);
  do {
    if (at - atomic_load_explicit(&taken, memory_order_acquire) >= RING_RECORDS) {
      atomic_fetch_add_explicit(&lost, 1, memory_order_relaxed);
      return NULL;
    }
  } while (!atomic_compare_exchange_weak_explicit(&claimed, &at, at + 1, memory_order_acq_rel, memory_order_relaxed));
  *number = at;
  return &ring[at % RING_RECORDS];
}

static int may_be_address(uint64_t word) { return word >= (1ull << 32) && word < (1ull << 57); }

static uint32_t keep_words(uint64_t *words, uint32_t count, const void *bytes, size_t size) {
  for (size_t at = 0; at + 8 <= size && count < MAX_WORDS; at += 8) {
    uint64_t word;
    memcpy(&word, (const char *)bytes + at, 8);
    if (may_be_address(word)) words[count++] = word;
  }
  return count;
}

/* Arguments of a launch outside all boundaries that look like addresses: whose memory it may touch; `all` if none was passed over. */
static uint32_t addresses(uint64_t *words, uint64_t handle, enum handle_type type, void **parameters, void **extra, int *all) {
  typedef status (*info_function)(void *, size_t, size_t *, size_t *);
  static _Atomic(info_function) of_kernel, of_function;
  uint32_t count = 0;
  if (extra) { /* CU_LAUNCH_PARAM_BUFFER_POINTER = 1, CU_LAUNCH_PARAM_BUFFER_SIZE = 2 */
    void *buffer = NULL;
    size_t size = 0;
    for (int i = 0; i < 8 && extra[i]; i += 2) {
      if ((uintptr_t)extra[i] == 1) buffer = extra[i + 1];
      if ((uintptr_t)extra[i] == 2) size = *(size_t *)extra[i + 1];
    }
    if (buffer) count = keep_words(words, 0, buffer, size);
    *all = buffer && count < MAX_WORDS;
    return count;
  }
  if (!parameters || (type != CU_KERNEL && type != CU_FUNCTION)) return 0;
  _Atomic(info_function) *slot = type == CU_KERNEL ? &of_kernel : &of_function;
  info_function info = atomic_load(slot);
  if (!info) {
    info = (info_function)in_libraries(DRIVERS, 2, type == CU_KERNEL ? "cuKernelGetParamInfo" : "cuFuncGetParamInfo");
    if (!info) return 0; /* a driver before CUDA 12.4 */
    atomic_store(slot, info);
  }
  for (size_t i = 0; i < MAX_PARAMETERS && count < MAX_WORDS; i++) {
    size_t offset = 0, size = 0;
    if (info((void *)handle, i, &offset, &size)) {
      *all = i > 0; /* past the last one; the very first is also refused where the driver does not know the kernel */
      break;
    }
    if (parameters[i]) count = keep_words(words, count, parameters[i], size);
  }
  return count;
}

/* Number of the capture that a stream is part of, 0 for none. Asks the driver, and only while something is captured: legal then. */
static uint64_t capture_of(const void *stream) {
  typedef status (*info_2)(const void *, int *, uint64_t *, void *, void *, void *);
  typedef status (*info_3)(const void *, int *, uint64_t *, void *, void *, void *, void *);
  static _Atomic(info_2) second;
  static _Atomic(info_3) third;
  if (!atomic_load_explicit(&capturing, memory_order_relaxed)) return 0;
  int state = 0;
  uint64_t number = 0;
  if (!atomic_load(&second) && !atomic_load(&third)) {
    atomic_store(&second, (info_2)in_libraries(DRIVERS, 2, "cuStreamGetCaptureInfo_v2"));
    atomic_store(&third, (info_3)in_libraries(DRIVERS, 2, "cuStreamGetCaptureInfo_v3"));
  }
  info_2 ask_2 = atomic_load(&second);
  info_3 ask_3 = atomic_load(&third);
  status answer = ask_2 ? ask_2(stream, &state, &number, NULL, NULL, NULL) : ask_3 ? ask_3(stream, &state, &number, NULL, NULL, NULL, NULL) : 1;
  return !answer && state == 1 ? number + 1 : 0; /* CU_STREAM_CAPTURE_STATUS_ACTIVE */
}

static void place(record *made) {
  made->flags = boundary == NO_BOUNDARY ? 0 : ATTRIBUTED;
  made->boundary = boundary == NO_BOUNDARY ? atomic_load_explicit(&newest, memory_order_relaxed) : boundary;
  made->num_words = 0;
}

static void note(enum kind kind, const void *handle, enum handle_type type, const void *stream, uint64_t bytes, void **parameters, void **extra) {
  if (is_own((uint64_t)(uintptr_t)handle)) return;
  uint64_t number, capture = kind == GRAPH ? 0 : capture_of(stream);
  if (!capture && atomic_load_explicit(&enabled, memory_order_relaxed) == GRAPHS_ONLY) return;
  record *made = claim(&number);
  if (!made) return;
  place(made);
  made->handle = (uint64_t)(uintptr_t)handle;
  made->handle_type = type;
  made->stream = (uint64_t)(uintptr_t)stream;
  made->kind = kind;
  made->bytes = capture ? capture : bytes;
  if (capture) made->flags |= CAPTURED;
  if (boundary == NO_BOUNDARY && !capture) {
    int all = 0;
    made->num_words = addresses(made->words, made->handle, type, parameters, extra, &all);
    if (all) made->flags |= ALL_WORDS;
  }
  atomic_store_explicit(&made->ready, number + 1, memory_order_release);
}

static void note_copy(const void *to, const void *from, uint64_t bytes, const void *stream, enum kind kind) {
  uint64_t number, capture = capture_of(stream);
  if (!capture && atomic_load_explicit(&enabled, memory_order_relaxed) == GRAPHS_ONLY) return;
  record *made = claim(&number);
  if (!made) return;
  place(made);
  made->handle = 0;
  made->handle_type = NO_HANDLE;
  made->stream = (uint64_t)(uintptr_t)stream;
  made->kind = kind;
  made->bytes = capture ? capture : bytes;
  if (capture) made->flags |= CAPTURED;
  if (boundary == NO_BOUNDARY && !capture) {
    if (to || from) made->flags |= ALL_WORDS;
    if (may_be_address((uint64_t)(uintptr_t)to)) made->words[made->num_words++] = (uint64_t)(uintptr_t)to;
    if (may_be_address((uint64_t)(uintptr_t)from)) made->words[made->num_words++] = (uint64_t)(uintptr_t)from;
  }
  atomic_store_explicit(&made->ready, number + 1, memory_order_release);
}

/* What became of a graph. */
static void note_graph(enum kind kind, const void *handle, uint64_t of) {
  uint64_t number;
  record *made = handle ? claim(&number) : NULL;
  if (!made) return;
  place(made);
  made->handle = (uint64_t)(uintptr_t)handle;
  made->handle_type = NO_HANDLE;
  made->stream = 0;
  made->kind = kind;
  made->bytes = of;
  atomic_store_explicit(&made->ready, number + 1, memory_order_release);
}

#define WATCHING (depth == 0 && atomic_load_explicit(&enabled, memory_order_relaxed) && boundary != OURS)
#define NOT_FOUND 500 /* cudaErrorSymbolNotFound and CUDA_ERROR_NOT_FOUND */

/* Define one function of ours: note, then go on with the one behind, nested calls left out. */
#define FORWARD(name, is_driver, declared, passed, noted)                            \
  EXPORT status name declared {                                                      \
    status(*next) declared = (status(*) declared)behind(I_##name, #name, is_driver); \
    if (!next) return NOT_FOUND;                                                     \
    if (WATCHING) { noted; }                                                         \
    depth++;                                                                         \
    status answer = next passed;                                                     \
    depth--;                                                                         \
    return answer;                                                                   \
  }
/* As FORWARD, noted once the call has succeeded. A capture counts as begun also while nothing is recorded. */
#define FORWARD_THEN(name, is_driver, declared, passed, done)                        \
  EXPORT status name declared {                                                      \
    status(*next) declared = (status(*) declared)behind(I_##name, #name, is_driver); \
    if (!next) return NOT_FOUND;                                                     \
    depth++;                                                                         \
    status answer = next passed;                                                     \
    depth--;                                                                         \
    if (!answer && depth == 0) { done; }                                             \
    return answer;                                                                   \
  }
#define FORWARD_END(name, is_driver)                                                                              \
  EXPORT status name(void *stream, void **graph) {                                                                \
    status (*next)(void *, void **) = (status(*)(void *, void **))behind(I_##name, #name, is_driver);             \
    if (!next) return NOT_FOUND;                                                                                  \
    uint64_t capture = depth == 0 ? capture_of(stream) : 0;                                                       \
    depth++;                                                                                                      \
    status answer = next(stream, graph);                                                                          \
    depth--;                                                                                                      \
    if (depth == 0 && atomic_fetch_sub(&capturing, 1) <= 0) atomic_fetch_add(&capturing, 1);                      \
    if (!answer && capture && graph && WATCHING) note_graph(GRAPH_MADE, *graph, capture);                         \
    return answer;                                                                                                \
  }
#define IF_WATCHING(noted) if (WATCHING) noted
#define BOTH_THEN(name, other, is_driver, declared, passed, done) \
  FORWARD_THEN(name, is_driver, declared, passed, done) FORWARD_THEN(other, is_driver, declared, passed, done)
#define RUNTIME_THEN(name, variant, declared, passed, done) BOTH_THEN(name, name##variant, 0, declared, passed, done)
#define DRIVER_THEN(name, variant, declared, passed, done) BOTH_THEN(name, name##variant, 1, declared, passed, done)
#define RUNTIME(name, variant, declared, passed, noted) FORWARD(name, 0, declared, passed, noted) FORWARD(name##variant, 0, declared, passed, noted)
#define DRIVER(name, variant, declared, passed, noted) FORWARD(name, 1, declared, passed, noted) FORWARD(name##variant, 1, declared, passed, noted)

/* Layouts. Source: cudaLaunchConfig_t of driver_types.h, CUlaunchConfig of cuda.h, CUDA 11.8 to 13. */
typedef struct { dim3 grid, block; size_t shared; void *stream; void *attributes; unsigned count; } runtime_config;
typedef struct { unsigned grid[3], block[3], shared; void *stream; void *attributes; unsigned count; } driver_config;

/* A program before CUDA 13 passes the address of its host stub; from 13 on `__cudaLaunchKernel` gets the CUkernel itself. */
RUNTIME(__cudaLaunchKernel, _ptsz, (const void *f, dim3 grid, dim3 block, void **args, size_t shared, void *stream),
        (f, grid, block, args, shared, stream), note(KERNEL, f, CU_KERNEL, stream, 0, args, NULL))
RUNTIME(cudaLaunchKernel, _ptsz, (const void *f, dim3 grid, dim3 block, void **args, size_t shared, void *stream),
        (f, grid, block, args, shared, stream), note(KERNEL, f, HOST_STUB, stream, 0, args, NULL))
RUNTIME(cudaLaunchKernelExC, _ptsz, (const runtime_config *config, const void *f, void **args), (config, f, args),
        note(KERNEL, f, HOST_STUB, config ? config->stream : NULL, 0, args, NULL))
RUNTIME(cudaLaunchCooperativeKernel, _ptsz, (const void *f, dim3 grid, dim3 block, void **args, size_t shared, void *stream),
        (f, grid, block, args, shared, stream), note(COOPERATIVE, f, HOST_STUB, stream, 0, args, NULL))
RUNTIME(cudaGraphLaunch, _ptsz, (void *graph, void *stream), (graph, stream), note(GRAPH, graph, GRAPH_EXEC, stream, 0, NULL, NULL))
RUNTIME(cudaMemcpyAsync, _ptsz, (void *to, const void *from, size_t bytes, int way, void *stream), (to, from, bytes, way, stream),
        note_copy(to, from, bytes, stream, COPY))
RUNTIME(cudaMemcpy, _ptds, (void *to, const void *from, size_t bytes, int way), (to, from, bytes, way), note_copy(to, from, bytes, NULL, COPY))
RUNTIME(cudaMemcpy2DAsync, _ptsz,
        (void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height, int way, void *stream),
        (to, to_pitch, from, from_pitch, width, height, way, stream), note_copy(to, from, width *height, stream, COPY))
RUNTIME(cudaMemcpyPeerAsync, _unused, (void *to, int to_device, const void *from, int from_device, size_t bytes, void *stream),
        (to, to_device, from, from_device, bytes, stream), note_copy(to, from, bytes, stream, COPY))
RUNTIME(cudaMemcpy3DAsync, _ptsz, (const void *what, void *stream), (what, stream), note_copy(NULL, NULL, 0, stream, COPY))
RUNTIME(cudaMemsetAsync, _ptsz, (void *to, int value, size_t bytes, void *stream), (to, value, bytes, stream),
        note_copy(to, NULL, bytes, stream, FILL))
RUNTIME(cudaMemset, _ptds, (void *to, int value, size_t bytes), (to, value, bytes), note_copy(to, NULL, bytes, NULL, FILL))

#define SHAPE unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz
DRIVER(cuLaunchKernel, _ptsz, (void *f, SHAPE, unsigned shared, void *stream, void **args, void **extra),
       (f, gx, gy, gz, bx, by, bz, shared, stream, args, extra), note(KERNEL, f, CU_FUNCTION, stream, 0, args, extra))
DRIVER(cuLaunchKernelEx, _ptsz, (const driver_config *config, void *f, void **args, void **extra), (config, f, args, extra),
       note(KERNEL, f, CU_FUNCTION, config ? config->stream : NULL, 0, args, extra))
DRIVER(cuLaunchCooperativeKernel, _ptsz, (void *f, SHAPE, unsigned shared, void *stream, void **args),
       (f, gx, gy, gz, bx, by, bz, shared, stream, args), note(COOPERATIVE, f, CU_FUNCTION, stream, 0, args, NULL))
DRIVER(cuGraphLaunch, _ptsz, (void *graph, void *stream), (graph, stream), note(GRAPH, graph, GRAPH_EXEC, stream, 0, NULL, NULL))
DRIVER(cuMemcpyAsync, _ptsz, (uint64_t to, uint64_t from, size_t bytes, void *stream), (to, from, bytes, stream),
       note_copy((void *)to, (void *)from, bytes, stream, COPY))
DRIVER(cuMemcpyHtoDAsync_v2, _ptsz, (uint64_t to, const void *from, size_t bytes, void *stream), (to, from, bytes, stream),
       note_copy((void *)to, NULL, bytes, stream, COPY))
DRIVER(cuMemcpyDtoHAsync_v2, _ptsz, (void *to, uint64_t from, size_t bytes, void *stream), (to, from, bytes, stream),
       note_copy(NULL, (void *)from, bytes, stream, COPY))
DRIVER(cuMemcpyDtoDAsync_v2, _ptsz, (uint64_t to, uint64_t from, size_t bytes, void *stream), (to, from, bytes, stream),
       note_copy((void *)to, (void *)from, bytes, stream, COPY))
DRIVER(cuMemcpyPeerAsync, _ptsz, (uint64_t to, void *to_context, uint64_t from, void *from_context, size_t bytes, void *stream),
       (to, to_context, from, from_context, bytes, stream), note_copy((void *)to, (void *)from, bytes, stream, COPY))
DRIVER(cuMemcpy2DAsync_v2, _ptsz, (const void *what, void *stream), (what, stream), note_copy(NULL, NULL, 0, stream, COPY))
DRIVER(cuMemcpy3DAsync_v2, _ptsz, (const void *what, void *stream), (what, stream), note_copy(NULL, NULL, 0, stream, COPY))
DRIVER(cuMemsetD8Async, _ptsz, (uint64_t to, unsigned char value, size_t count, void *stream), (to, value, count, stream),
       note_copy((void *)to, NULL, count, stream, FILL))
DRIVER(cuMemsetD16Async, _ptsz, (uint64_t to, unsigned short value, size_t count, void *stream), (to, value, count, stream),
       note_copy((void *)to, NULL, 2 * count, stream, FILL))
DRIVER(cuMemsetD32Async, _ptsz, (uint64_t to, unsigned value, size_t count, void *stream), (to, value, count, stream),
       note_copy((void *)to, NULL, 4 * count, stream, FILL))

/* Graphs. Older runtimes give `cudaGraphInstantiate` five arguments and `cudaGraphExecUpdate` four: passed on as they came. */
#define READY(exec, graph) IF_WATCHING(note_graph(GRAPH_READY, exec, (uint64_t)(uintptr_t)(graph)))
RUNTIME_THEN(cudaStreamBeginCapture, _ptsz, (void *stream, int mode), (stream, mode), atomic_fetch_add(&capturing, 1))
RUNTIME_THEN(cudaStreamBeginCaptureToGraph, _ptsz, (void *stream, void *graph, const void *nodes, const void *edges, size_t count, int mode),
             (stream, graph, nodes, edges, count, mode), atomic_fetch_add(&capturing, 1))
FORWARD_END(cudaStreamEndCapture, 0) FORWARD_END(cudaStreamEndCapture_ptsz, 0)
RUNTIME_THEN(cudaGraphInstantiate, _unused, (void **exec, void *graph, uint64_t a, void *b, size_t c), (exec, graph, a, b, c), READY(*exec, graph))
RUNTIME_THEN(cudaGraphInstantiateWithFlags, _unused, (void **exec, void *graph, uint64_t flags), (exec, graph, flags), READY(*exec, graph))
RUNTIME_THEN(cudaGraphInstantiateWithParams, _ptsz, (void **exec, void *graph, void *how), (exec, graph, how), READY(*exec, graph))
RUNTIME_THEN(cudaGraphExecUpdate, _unused, (void *exec, void *graph, void *a, void *b), (exec, graph, a, b), READY(exec, graph))
RUNTIME_THEN(cudaGraphDestroy, _unused, (void *graph), (graph), IF_WATCHING(note_graph(GRAPH_GONE, graph, 0)))
RUNTIME_THEN(cudaGraphExecDestroy, _unused, (void *exec), (exec), IF_WATCHING(note_graph(GRAPH_GONE, exec, 0)))
DRIVER_THEN(cuStreamBeginCapture, _ptsz, (void *stream), (stream), atomic_fetch_add(&capturing, 1))
DRIVER_THEN(cuStreamBeginCapture_v2, _ptsz, (void *stream, int mode), (stream, mode), atomic_fetch_add(&capturing, 1))
DRIVER_THEN(cuStreamBeginCaptureToGraph, _ptsz, (void *stream, void *graph, const void *nodes, const void *edges, size_t count, int mode),
            (stream, graph, nodes, edges, count, mode), atomic_fetch_add(&capturing, 1))
FORWARD_END(cuStreamEndCapture, 1) FORWARD_END(cuStreamEndCapture_ptsz, 1)
DRIVER_THEN(cuGraphInstantiate, _unused, (void **exec, void *graph, void *a, void *b, size_t c), (exec, graph, a, b, c), READY(*exec, graph))
DRIVER_THEN(cuGraphInstantiate_v2, _unused, (void **exec, void *graph, void *a, void *b, size_t c), (exec, graph, a, b, c), READY(*exec, graph))
DRIVER_THEN(cuGraphInstantiateWithFlags, _unused, (void **exec, void *graph, uint64_t flags), (exec, graph, flags), READY(*exec, graph))
DRIVER_THEN(cuGraphInstantiateWithParams, _ptsz, (void **exec, void *graph, void *how), (exec, graph, how), READY(*exec, graph))
DRIVER_THEN(cuGraphExecUpdate_v2, _unused, (void *exec, void *graph, void *a), (exec, graph, a), READY(exec, graph))
DRIVER_THEN(cuGraphDestroy, _unused, (void *graph), (graph), IF_WATCHING(note_graph(GRAPH_GONE, graph, 0)))
DRIVER_THEN(cuGraphExecDestroy, _unused, (void *exec), (exec), IF_WATCHING(note_graph(GRAPH_GONE, exec, 0)))

/* ---- Functions fetched by name -------------------------------------------------------------------------------------------------------------- */

typedef struct { const char *name; enum index which; void *ours; } entry;
static const entry FETCHED[] = {
#define X(name, variant) {#name, I_##name, (void *)name}, {#name #variant, I_##name##variant, (void *)name##variant},
    RUNTIME_FUNCTIONS(X) DRIVER_FUNCTIONS(X)
#undef X
};

static const entry *fetched(const char *name) {
  for (size_t i = 0; i < sizeof FETCHED / sizeof *FETCHED; i++)
    if (!strcmp(FETCHED[i].name, name)) return &FETCHED[i];
  return NULL;
}

/* Put ours before a function that somebody fetched. One that is not the one we know (another version of it) is given out as it is, counted. */
static void *before(const entry *which, void *found) {
  if (!found || found == which->ours) return found;
  void *known = NULL;
  if (atomic_compare_exchange_strong(&real[which->which], &known, found) || known == found) return which->ours;
  uint64_t at = atomic_fetch_add_explicit(&escaped, 1, memory_order_relaxed);
  if (at < MAX_GONE_PAST) memcpy(gone_past[at], which->name, strlen(which->name) + 1); /* one word in the end: read when the program is over */
  return found;
}

/* The function of ours that stands for `found`, whose name begins with `name`: the one whose own symbol in the driver it is. */
static const entry *by_symbol(const char *name, size_t length, void *found) {
  for (size_t i = 0; i < sizeof FETCHED / sizeof *FETCHED; i++) {
    const entry *which = &FETCHED[i];
    if (strncmp(which->name, name, length)) continue;
    if (found == which->ours || found == in_libraries(DRIVERS, 2, which->name)) return which;
  }
  return NULL;
}

/* `cuGetProcAddress` takes the bare name; the flags choose the stream variant, the version the newest form that a caller of its age knows. */
static void *before_named(const char *name, void *found, uint64_t flags) {
  char full[MAX_NAME];
  size_t length = name ? strlen(name) : sizeof full;
  if (!found || length + 16 > sizeof full) return found;
  const entry *exact = by_symbol(name, length, found);
  if (exact) return before(exact, found);
  static const char *const versions[] = {"", "_v2"};
  for (int i = 0; i < 2; i++) {
    memcpy(full, name, length + 1);
    strcat(full, versions[i]);
    if (flags & PER_THREAD_STREAM) strcat(full, "_ptsz");
    const entry *which = fetched(full);
    if (which) return before(which, found);
  }
  return found;
}

typedef status (*address_function)(const char *, void **, int, uint64_t);
typedef status (*address_function_2)(const char *, void **, int, uint64_t, void *);
static _Atomic(address_function) real_address;
static _Atomic(address_function_2) real_address_2;
static status address_2(const char *name, void **found, int version, uint64_t flags, void *what);

static void *door(const char *name, void *found, uint64_t flags);

static status address(const char *name, void **found, int version, uint64_t flags) {
  status answer = atomic_load(&real_address)(name, found, version, flags);
  if (!answer && found) *found = door(name, *found, flags);
  return answer;
}

static status address_2(const char *name, void **found, int version, uint64_t flags, void *what) {
  status answer = atomic_load(&real_address_2)(name, found, version, flags, what);
  if (!answer && found) *found = door(name, *found, flags);
  return answer;
}

/* What to give out for `name`: the look-up functions themselves are doors too, also when fetched through each other. */
static void *door(const char *name, void *found, uint64_t flags) {
  if (!found) return found;
  if (!strcmp(name, "cuGetProcAddress_v2")) {
    atomic_store(&real_address_2, (address_function_2)found);
    return (void *)address_2;
  }
  if (!strcmp(name, "cuGetProcAddress")) { /* asked for by a caller of CUDA 12 or newer, it is the second form */
    if (atomic_load(&real_address_2) == (address_function_2)found) return (void *)address_2;
    if (atomic_load(&real_address) == (address_function)found) return (void *)address;
    void *second = in_libraries(DRIVERS, 2, "cuGetProcAddress_v2");
    if (second == found) {
      atomic_store(&real_address_2, (address_function_2)found);
      return (void *)address_2;
    }
    atomic_store(&real_address, (address_function)found);
    return (void *)address;
  }
  return before_named(name, found, flags);
}

static int interesting(const char *name) { return name && (!strncmp(name, "cu", 2) || !strncmp(name, "__cuda", 6)); }

static __attribute__((noinline)) void *fetch(void *library, const char *name) {
  void *found = real_dlsym(library, name);
  if (!found) return NULL;
  if (!strcmp(name, "cuGetProcAddress_v2")) return door(name, found, 0);
  if (!strcmp(name, "cuGetProcAddress")) { /* by symbol it is always the first form */
    atomic_store(&real_address, (address_function)found);
    return (void *)address;
  }
  const entry *which = fetched(name);
  return which ? before(which, found) : found;
}

/* Names that are not ours are passed on by a jump: `RTLD_NEXT` means "after the caller", and the caller must stay who it was. */
EXPORT void *dlsym(void *library, const char *name) {
  if (!real_dlsym) find_dlsym();
  dlsym_function next = interesting(name) ? fetch : real_dlsym;
  return next(library, name);
}

/* ---- For the capture ------------------------------------------------------------------------------------------------------------------------- */

EXPORT int opguard_shim_version(void) { return VERSION; }
EXPORT size_t opguard_shim_record_bytes(void) { return sizeof(record); }

/* Record everything, nothing, or only what graphs are made of. What was recorded and not taken stays. */
EXPORT void opguard_shim_enable(int level) { atomic_store(&enabled, level); }

/* Say which event is in flight on the calling thread; returns the one before, to be put back. Cost: a few moves. */
EXPORT uint64_t opguard_shim_boundary(uint64_t seq) {
  uint64_t before_it = boundary;
  boundary = seq;
  if (seq < TOKENS) {
    uint64_t known = atomic_load_explicit(&newest, memory_order_relaxed);
    if (known == NO_BOUNDARY || seq > known) atomic_store_explicit(&newest, seq, memory_order_relaxed); /* a race costs exactness, not sense */
  }
  return before_it;
}

/* The event in flight on the calling thread. */
EXPORT uint64_t opguard_shim_in_flight(void) { return boundary; }

/* Work of ours is not the program's: launches of this function are left out. 0 if there is no room for another. */
EXPORT int opguard_shim_own(uint64_t handle) {
  if (is_own(handle)) return 1;
  int at = atomic_load(&num_own);
  do {
    if (at >= MAX_OWN) return 0;
  } while (!atomic_compare_exchange_weak(&num_own, &at, at + 1));
  atomic_store(&own[at], handle);
  return 1;
}

/* `dlsym` without us: whoever of ours takes the driver's functions through it is not seen. */
EXPORT void *opguard_shim_dlsym(void *library, const char *name) {
  if (!real_dlsym) find_dlsym();
  return real_dlsym(library, name);
}

/* Leave out, or no longer, everything that the calling thread submits. */
EXPORT void opguard_shim_mute(int on) { depth += on ? 1 : -1; }

/* Take finished records, oldest first; stops at one that is being written. */
EXPORT int opguard_shim_take(record *out, int limit) {
  pthread_mutex_lock(&take_lock);
  uint64_t at = atomic_load_explicit(&taken, memory_order_relaxed);
  int count = 0;
  while (count < limit && at < atomic_load_explicit(&claimed, memory_order_acquire)) {
    record *next = &ring[at % RING_RECORDS];
    if (atomic_load_explicit(&next->ready, memory_order_acquire) != at + 1) break;
    memcpy(&out[count++], next, sizeof *next);
    atomic_store_explicit(&taken, ++at, memory_order_release);
  }
  pthread_mutex_unlock(&take_lock);
  return count;
}

/* Counts since the start: submitted and recorded, lost for want of room, given out unwrapped. */
EXPORT void opguard_shim_counts(uint64_t counts[3]) {
  counts[0] = atomic_load(&claimed);
  counts[1] = atomic_load(&lost);
  counts[2] = atomic_load(&escaped);
}

/* Name of the function that was the nth to be given out unwrapped, "" if there was none or it is not kept. */
EXPORT const char *opguard_shim_gone_past(uint64_t number) { return number < MAX_GONE_PAST ? gone_past[number] : ""; }

/* Name of what was launched, as the device's own tools show it (mangled); 0 if the driver does not tell. */
EXPORT int opguard_shim_name(uint64_t handle, uint32_t type, char *out, size_t size) {
  typedef status (*name_function)(const char **, void *);
  typedef status (*stub_function)(void **, const void *);
  void *of = (void *)(uintptr_t)handle;
  const char *name = NULL;
  if (!real_dlsym) find_dlsym();
  if (!handle || !size) return 0;
  if (type == HOST_STUB) {
    /* Through the runtime: the stub's address, or since CUDA 12.1 a kernel's own handle. */
    name_function by_stub = (name_function)in_libraries(RUNTIMES, 4, "cudaFuncGetName");
    if (by_stub && !by_stub(&name, of) && name) goto found;
    stub_function kernel_of = (stub_function)in_libraries(RUNTIMES, 4, "cudaGetKernel");
    void *kernel = NULL;
    if (kernel_of && !kernel_of(&kernel, of) && kernel) of = kernel;
  }
  static const char *const order[2][2] = {{"cuKernelGetName", "cuFuncGetName"}, {"cuFuncGetName", "cuKernelGetName"}};
  for (int i = 0; i < 2; i++) {
    name_function next = (name_function)in_libraries(DRIVERS, 2, order[type == CU_FUNCTION][i]);
    if (next && !next(&name, of) && name) goto found;
  }
  return 0;
found:
  strncpy(out, name, size - 1);
  out[size - 1] = 0;
  return 1;
}

/* A forked child has no device and nobody who takes records. */
static void in_child(void) {
  atomic_store(&enabled, OFF);
  atomic_store(&capturing, 0);
  pthread_mutex_init(&take_lock, NULL);
}

__attribute__((constructor)) static void begin(void) {
  find_dlsym();
  pthread_atfork(NULL, NULL, in_child);
}
