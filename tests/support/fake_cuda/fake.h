/* How tests steer the fake driver. All calls may come from any thread. */
#ifndef FAKE_CUDA_H
#define FAKE_CUDA_H
#include <stddef.h>
#include <stdint.h>

enum { FAKE_MAX_PARAMETERS = 8 };

/* A kernel: the whole grid at once, on its stream's thread. `arguments` are pointers to copies, as for cuLaunchKernel. */
typedef void (*fake_kernel)(unsigned grid, unsigned block, void **arguments);

typedef struct {
    long long waits;              /* calls that wait for a device */
    long long blocking_streams;   /* made without CU_STREAM_NON_BLOCKING: they wait for the legacy stream */
    long long capture_violations; /* calls that invalidate a capture */
    long long launches, copies, allocations, pushes;
    long long device_bytes, pinned_bytes; /* held now */
    long long looks; /* copies of 64 bytes, the size of the ring's header */
} fake_counts;

void fake_read_counts(fake_counts *out);
void fake_clear_counts(void);
void fake_fail_launches(int n);    /* the next n fail */
void fake_fail_allocations(int n); /* the next n fail, on the device or pinned */
void fake_tear_copies(int n);      /* the next n copies of more than 64 bytes come out torn */
void fake_hold_copies(int held);   /* work on streams that the launch path made waits */
void fake_kill_device(int is_dead); /* every further call fails, as after an illegal access */
void *fake_kernel_handle(const char *name, int device, fake_kernel run, int num_parameters, const size_t *sizes);
void *fake_stream(int device, int flags);
void fake_hold(void *stream, int held); /* its work waits until let go */
void fake_finish(void *stream);
#endif
