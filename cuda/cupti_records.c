/* Kernels as CUPTI saw them run: how often, how long, inside graphs or not, and whether a boundary was in flight where they were submitted.
 *
 * An opt-in beside `launch_shim.c`, which sees submissions: here are the kernels that really ran, those of a graph's replay by name, with
 * their times on the device. CUPTI has one subscriber at a time (up to CUDA 13.2), so this takes the place of torch.profiler until
 * `opguard_cupti_end`, and is refused while anybody holds it. Everything is counted by kernel as buffers come back, on CUPTI's own thread.
 *
 * No CUDA headers: functions come from the libcupti that torch has loaded (never another copy), signatures and offsets are those of CUPTI
 * 13.0 (cupti_activity.h, CUpti_ActivityKernel10; cupti_callbacks.h, CUpti_CallbackData); other versions are refused.
 *
 * Cannot see: work that CUPTI itself drops (counted), copies and fills, kernels whose buffer never came back.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#define VERSION 1
#define NO_BOUNDARY UINT64_MAX
#define OURS (UINT64_MAX - 1)
#define BUFFER_BYTES (1u << 20)
#define MAX_NAMES 8192u /* a power of two */
#define MAX_CALLS (1u << 16)

enum { OK = 0, ONE_SUBSCRIBER_ONLY = 39 };
enum { CONCURRENT_KERNEL = 10, DRIVER_API = 1, RUNTIME_API = 2, ENTER = 0, FLUSH_FORCED = 1 };

/* CUpti_CallbackData, CUpti_ActivityKernel10. Source: the headers of CUPTI 13.0, by offsetof. */
enum { SITE = 0, CALL_CORRELATION = 64 };
enum { KIND = 0, START = 16, END = 24, CORRELATION = 92, NAME = 104, GRAPH_ID = 156 };
static const uint32_t KNOWN_VERSIONS[] = {130000, 130001};

/* Calls that launch kernels or graphs. Source: cupti_runtime_cbid.h, cupti_driver_cbid.h of 13.0. */
static const struct { int domain; uint32_t id; } CALLS[] = {
    {RUNTIME_API, 211}, {RUNTIME_API, 214}, {RUNTIME_API, 269}, {RUNTIME_API, 270}, {RUNTIME_API, 311}, {RUNTIME_API, 312}, {RUNTIME_API, 430},
    {RUNTIME_API, 431}, {RUNTIME_API, 505}, {RUNTIME_API, 506}, {DRIVER_API, 307},  {DRIVER_API, 442},  {DRIVER_API, 477},  {DRIVER_API, 478},
    {DRIVER_API, 514},  {DRIVER_API, 515},  {DRIVER_API, 652},  {DRIVER_API, 653},
};

typedef int status;
typedef void (*api_callback)(void *, int, uint32_t, const void *);
typedef void (*buffer_request)(uint8_t **, size_t *, size_t *);
typedef void (*buffer_complete)(void *, uint32_t, uint8_t *, size_t, size_t);

static struct {
  status (*cuptiGetVersion)(uint32_t *);
  status (*cuptiSubscribe)(void **, api_callback, void *);
  status (*cuptiUnsubscribe)(void *);
  status (*cuptiEnableCallback)(uint32_t, void *, int, uint32_t);
  status (*cuptiActivityRegisterCallbacks)(buffer_request, buffer_complete);
  status (*cuptiActivityEnable)(int);
  status (*cuptiActivityDisable)(int);
  status (*cuptiActivityFlushAll)(uint32_t);
  status (*cuptiActivityGetNextRecord)(uint8_t *, size_t, void **);
  status (*cuptiActivityGetNumDroppedRecords)(void *, uint32_t, size_t *);
} cupti;

/* One kernel; mirrored in opguard_core/intercept/cupti.py. */
typedef struct {
  const char *name;
  uint64_t count, timed, ns;            /* ran, of these with times, nanoseconds of those */
  uint64_t attributed, attributed_timed, attributed_ns;
  uint64_t in_graphs;                   /* of count, as nodes of a graph */
} kernel;

static kernel kernels[MAX_NAMES];
static struct { _Atomic uint64_t correlation, boundary; } calls[MAX_CALLS]; /* newest launch with that remainder */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;                    /* of `kernels` */
static _Atomic uint64_t dropped, unplaced, unnamed;
static void *subscriber;
static atomic_int running;
static uint64_t (*in_flight)(void);

/* Boundary in flight where a kernel or a graph is launched. Cost: a few stores a launch, beside what CUPTI's callback itself takes. */
static void on_call(void *nothing, int domain, uint32_t id, const void *data) {
  (void)nothing, (void)domain, (void)id;
  int32_t site;
  uint32_t correlation;
  memcpy(&site, (const char *)data + SITE, 4);
  if (site != ENTER) return;
  memcpy(&correlation, (const char *)data + CALL_CORRELATION, 4);
  uint64_t boundary = in_flight ? in_flight() : NO_BOUNDARY;
  atomic_store_explicit(&calls[correlation % MAX_CALLS].boundary, boundary, memory_order_relaxed);
  atomic_store_explicit(&calls[correlation % MAX_CALLS].correlation, (uint64_t)correlation + 1, memory_order_release);
}

static void on_request(uint8_t **buffer, size_t *size, size_t *max_records) {
  *buffer = aligned_alloc(8, BUFFER_BYTES);
  *size = *buffer ? BUFFER_BYTES : 0;
  *max_records = 0;
}

static kernel *of_name(const char *name) {
  uint64_t hash = 1469598103934665603ull;
  for (const char *at = name; *at; at++) hash = (hash ^ (unsigned char)*at) * 1099511628211ull;
  for (uint32_t tries = 0; tries < MAX_NAMES; tries++) {
    kernel *found = &kernels[(hash + tries) & (MAX_NAMES - 1)];
    if (!found->name) found->name = strdup(name); /* CUPTI's text may go with its module */
    if (found->name && !strcmp(found->name, name)) return found;
    if (!found->name) return NULL;
  }
  return NULL;
}

static uint64_t word(const char *record, int at) {
  uint64_t value;
  memcpy(&value, record + at, 8);
  return value;
}

static void count(const char *record) {
  const char *name = (const char *)(uintptr_t)word(record, NAME);
  uint64_t start = word(record, START), end = word(record, END), boundary = NO_BOUNDARY;
  uint32_t correlation, graph;
  memcpy(&correlation, record + CORRELATION, 4);
  memcpy(&graph, record + GRAPH_ID, 4);
  kernel *found = of_name(name ? name : "");
  if (!found) {
    atomic_fetch_add(&unnamed, 1);
    return;
  }
  if (atomic_load_explicit(&calls[correlation % MAX_CALLS].correlation, memory_order_acquire) == (uint64_t)correlation + 1)
    boundary = atomic_load_explicit(&calls[correlation % MAX_CALLS].boundary, memory_order_relaxed);
  else
    atomic_fetch_add(&unplaced, 1);
  int timed = start && end >= start, own = boundary < OURS;
  found->count++;
  found->timed += timed;
  found->ns += timed ? end - start : 0;
  found->attributed += own;
  found->attributed_timed += own && timed;
  found->attributed_ns += own && timed ? end - start : 0;
  found->in_graphs += graph != 0;
}

static void on_complete(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid) {
  (void)size;
  void *record = NULL;
  pthread_mutex_lock(&lock);
  while (valid && cupti.cuptiActivityGetNextRecord(buffer, valid, &record) == OK && record) {
    int32_t kind;
    memcpy(&kind, (const char *)record + KIND, 4);
    if (kind == CONCURRENT_KERNEL) count(record);
  }
  pthread_mutex_unlock(&lock);
  size_t more = 0;
  if (cupti.cuptiActivityGetNumDroppedRecords(context, stream, &more) == OK) atomic_fetch_add(&dropped, more);
  free(buffer);
}

static int refuse(char *why, size_t size, const char *text, long number) {
  snprintf(why, size, text, number);
  return 0;
}

EXPORT int opguard_cupti_version(void) { return VERSION; }
EXPORT size_t opguard_cupti_kernel_bytes(void) { return sizeof(kernel); }

/* Become CUPTI's subscriber and count kernels. 0 with a sentence in `why` if that cannot be. `library` must be loaded already. */
EXPORT int opguard_cupti_begin(const char *library, char *why, size_t size) {
  if (atomic_load(&running)) return 1;
  void *from = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
  if (!from) return refuse(why, size, "no libcupti is loaded in this process: this torch is built without it", 0);
  dlclose(from); /* loaded by torch: it stays */
#define FIND(name) \
  if (!(*(void **)&cupti.name = dlsym(from, #name))) return refuse(why, size, "libcupti lacks " #name, 0);
  FIND(cuptiGetVersion) FIND(cuptiSubscribe) FIND(cuptiUnsubscribe) FIND(cuptiEnableCallback) FIND(cuptiActivityRegisterCallbacks)
  FIND(cuptiActivityEnable) FIND(cuptiActivityDisable) FIND(cuptiActivityFlushAll) FIND(cuptiActivityGetNextRecord)
  FIND(cuptiActivityGetNumDroppedRecords)
  uint32_t version = 0;
  int known = 0;
  if (cupti.cuptiGetVersion(&version) != OK) return refuse(why, size, "CUPTI does not tell its version", 0);
  for (size_t i = 0; i < sizeof KNOWN_VERSIONS / sizeof *KNOWN_VERSIONS; i++) known |= version == KNOWN_VERSIONS[i];
  if (!known) return refuse(why, size, "CUPTI has version %ld; the records of 130000 and 130001 (CUDA 13.0) are known", (long)version);
  *(void **)&in_flight = dlsym(RTLD_DEFAULT, "opguard_shim_in_flight");
  status answer = cupti.cuptiSubscribe(&subscriber, on_call, NULL);
  if (answer == ONE_SUBSCRIBER_ONLY)
    return refuse(why, size, "another client holds CUPTI, which takes one at a time: torch.profiler, once it was used, or a tool such as Nsight", 0);
  if (answer != OK) return refuse(why, size, "cuptiSubscribe failed with error %ld", answer);
  atomic_store(&running, 1);
  for (size_t i = 0; answer == OK && in_flight && i < sizeof CALLS / sizeof *CALLS; i++)
    answer = cupti.cuptiEnableCallback(1, subscriber, CALLS[i].domain, CALLS[i].id);
  if (answer == OK) answer = cupti.cuptiActivityRegisterCallbacks(on_request, on_complete);
  if (answer == OK) answer = cupti.cuptiActivityEnable(CONCURRENT_KERNEL);
  if (answer == OK) return 1;
  atomic_store(&running, 0);
  cupti.cuptiUnsubscribe(subscriber);
  return refuse(why, size, "CUPTI was subscribed to, and then refused with error %ld", answer);
}

/* Let go of CUPTI: all buffers come back first, those of kernels that still run too. Whoever subscribes next finds it free. */
EXPORT void opguard_cupti_end(void) {
  int was = 1;
  if (!atomic_compare_exchange_strong(&running, &was, 0)) return;
  cupti.cuptiActivityFlushAll(FLUSH_FORCED);
  cupti.cuptiActivityDisable(CONCURRENT_KERNEL);
  cupti.cuptiUnsubscribe(subscriber);
}

/* Copy out what was counted; returns the number of kernels, at most `limit`. Names live as long as the process. */
EXPORT int opguard_cupti_kernels(kernel *out, int limit) {
  int at = 0;
  pthread_mutex_lock(&lock);
  for (uint32_t i = 0; i < MAX_NAMES && at < limit; i++)
    if (kernels[i].name) out[at++] = kernels[i];
  pthread_mutex_unlock(&lock);
  return at;
}

/* Records that CUPTI dropped, kernels whose launch was not found any more, kernels with no room for their name. */
EXPORT void opguard_cupti_counts(uint64_t counts[3]) {
  counts[0] = atomic_load(&dropped);
  counts[1] = atomic_load(&unplaced);
  counts[2] = atomic_load(&unnamed);
}

/* A forked child has no device. */
static void in_child(void) {
  atomic_store(&running, 0);
  pthread_mutex_init(&lock, NULL);
}

__attribute__((constructor)) static void begin(void) { pthread_atfork(NULL, NULL, in_child); }
