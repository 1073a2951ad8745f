/* A driver that launches nothing: counts what reaches it, by the symbol it arrived at. */
#include <stdint.h>
#include <string.h>

typedef int status;
static uint64_t calls[8], last_stream;
uint64_t fake_driver_calls(int which) { return calls[which]; }
uint64_t fake_driver_stream(void) { return last_stream; }
static status arrive(int which, void *stream) {
  calls[which]++;
  last_stream = (uint64_t)stream;
  return 0;
}
#define SHAPE unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz
status cuLaunchKernel(void *f, SHAPE, unsigned shared, void *stream, void **args, void **extra) {
  (void)f, (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared, (void)args, (void)extra;
  return arrive(0, stream);
}
status cuLaunchKernel_ptsz(void *f, SHAPE, unsigned shared, void *stream, void **args, void **extra) {
  (void)f, (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared, (void)args, (void)extra;
  return arrive(1, stream);
}
typedef struct { unsigned grid[3], block[3], shared; void *stream; void *attributes; unsigned count; } driver_config;
status cuLaunchKernelEx(const driver_config *config, void *f, void **args, void **extra) {
  (void)f, (void)args, (void)extra;
  return arrive(2, config->stream);
}
status cuGraphLaunch(void *graph, void *stream) { (void)graph; return arrive(3, stream); }
status cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void *stream) { (void)to, (void)from, (void)bytes; return arrive(4, stream); }
status cuMemsetD32Async(uint64_t to, unsigned value, size_t count, void *stream) { (void)to, (void)value, (void)count; return arrive(5, stream); }
/* Graphs: one capture at a time, on the streams that joined it; graphs and what they become are numbers. */
static uint64_t capture_number;
static void *captured_streams[4];
static int num_captured;
void fake_driver_join(void *stream) { captured_streams[num_captured++ & 3] = stream; }
status cuStreamBeginCapture_v2(void *stream, int mode) {
  if (mode == 99) return 1;
  capture_number++, num_captured = 0;
  fake_driver_join(stream);
  return 0;
}
status cuStreamBeginCapture(void *stream) { return cuStreamBeginCapture_v2(stream, 0); }
status cuStreamEndCapture(void *stream, void **graph) {
  (void)stream;
  num_captured = 0;
  *graph = (void *)(0x9000 + capture_number);
  return 0;
}
status cuStreamGetCaptureInfo_v2(const void *stream, int *state, uint64_t *number, void *graph, void *nodes, void *count) {
  (void)graph, (void)nodes, (void)count;
  *state = 0;
  for (int i = 0; i < num_captured; i++)
    if (captured_streams[i] == stream) *state = 1, *number = capture_number;
  return 0;
}
status cuGraphInstantiateWithFlags(void **ready, void *graph, uint64_t flags) { *ready = (void *)((uint64_t)graph + 0x1000 + flags); return 0; }
status cuGraphInstantiate(void **ready, void *graph, void *a, void *b, size_t c) { (void)a, (void)b; return cuGraphInstantiateWithFlags(ready, graph, c); }
status cuGraphDestroy(void *graph) { (void)graph; return 0; }
/* Another version of a function that the shim has met: it must be given out as it is. */
static status newer_launch(void *f, SHAPE, unsigned shared, void *stream, void **args, void **extra) {
  (void)f, (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared, (void)args, (void)extra;
  return arrive(6, stream);
}
/* Handles are small numbers; kernel N is called kernel_N, takes one pointer and one int of 4 bytes. */
static const char *name_of(const void *f) {
  static char names[64][16];
  unsigned number = (unsigned)(uintptr_t)f & 63;
  memcpy(names[number], "kernel_", 7);
  names[number][7] = (char)('0' + number / 10), names[number][8] = (char)('0' + number % 10), names[number][9] = 0;
  return names[number];
}
status cuFuncGetName(const char **name, void *f) { *name = name_of(f); return 0; }
status cuKernelGetName(const char **name, void *f) { *name = name_of(f); return 0; }
static status info(size_t index, size_t *offset, size_t *size) {
  if (index > 1) return 1;
  *offset = index * 8, *size = index ? 4 : 8;
  return 0;
}
status cuFuncGetParamInfo(void *f, size_t index, size_t *offset, size_t *size) { (void)f; return info(index, offset, size); }
status cuKernelGetParamInfo(void *f, size_t index, size_t *offset, size_t *size) { (void)f; return info(index, offset, size); }

status cuGetProcAddress_v2(const char *name, void **found, int version, uint64_t flags, void *what) {
  (void)what;
  *found = 0;
  if (!strcmp(name, "cuLaunchKernel")) *found = version >= 99000 ? (void *)newer_launch : flags & 2 ? (void *)cuLaunchKernel_ptsz : (void *)cuLaunchKernel;
  if (!strcmp(name, "cuLaunchKernelEx")) *found = (void *)cuLaunchKernelEx;
  if (!strcmp(name, "cuGraphLaunch")) *found = (void *)cuGraphLaunch;
  if (!strcmp(name, "cuMemcpyDtoDAsync")) *found = (void *)cuMemcpyDtoDAsync_v2;
  if (!strcmp(name, "cuStreamBeginCapture")) *found = version < 10010 ? (void *)cuStreamBeginCapture : (void *)cuStreamBeginCapture_v2;
  if (!strcmp(name, "cuGraphInstantiate")) *found = version < 11000 ? (void *)cuGraphInstantiate : (void *)cuGraphInstantiateWithFlags;
  if (!strcmp(name, "cuGetProcAddress")) *found = (void *)cuGetProcAddress_v2;
  return *found ? 0 : 500;
}
status cuGetProcAddress(const char *name, void **found, int version, uint64_t flags) { return cuGetProcAddress_v2(name, found, version, flags, 0); }
