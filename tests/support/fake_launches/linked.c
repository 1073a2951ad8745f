/* A library linked against the runtime, as torch's are; loaded with RTLD_LOCAL. Also one that asks for the next `dlsym` user. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
typedef struct { unsigned x, y, z; } dim3;
extern int __cudaLaunchKernel(void *, dim3, dim3, void **, size_t, void *);
extern int cudaMemcpyAsync(void *, const void *, size_t, int, void *);
int linked_launch(void *f, void *pointer, void *stream) {
  int number = 7;
  void *args[] = {&pointer, &number};
  return __cudaLaunchKernel(f, (dim3){1, 2, 3}, (dim3){4, 5, 6}, args, 0, stream);
}
int linked_copy(void *to, void *from, size_t bytes, void *stream) { return cudaMemcpyAsync(to, from, bytes, 3, stream); }
/* As torch captures and replays a graph. */
extern int cudaStreamBeginCapture(void *, int), cudaStreamEndCapture(void *, void **), cudaGraphInstantiateWithFlags(void **, void *, unsigned long long);
extern int cudaGraphLaunch(void *, void *), cudaGraphDestroy(void *), cudaGraphExecDestroy(void *);
int linked_begin(void *stream, int mode) { return cudaStreamBeginCapture(stream, mode); }
void *linked_end(void *stream, unsigned long long flags) {
  void *graph = 0, *ready = 0;
  if (cudaStreamEndCapture(stream, &graph) || cudaGraphInstantiateWithFlags(&ready, graph, flags) || cudaGraphDestroy(graph)) return 0;
  return ready;
}
int linked_replay(void *ready, void *stream) { return cudaGraphLaunch(ready, stream); }
int linked_drop(void *ready) { return cudaGraphExecDestroy(ready); }
/* A wrapper of a C function must find the next one after itself, not itself. */
double cos(double x) {
  double (*next)(double) = (double (*)(double))dlsym(RTLD_NEXT, "cos");
  return next == cos ? 2.0 : next ? next(x) : 3.0;
}
double linked_cos(double x) { return cos(x); }
