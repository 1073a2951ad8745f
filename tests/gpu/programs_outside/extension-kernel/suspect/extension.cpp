// An extension as people write them: pybind11, tensors in, a kernel of its own, nothing that torch's dispatcher sees.
#include <ATen/core/Tensor.h>
#include <dlfcn.h>
#include <torch/csrc/utils/pybind.h>

static const float kOff = 0.25f;  // of the last element

using Launch = int (*)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**);

// function: CUfunction of the kernel, 0 on a CPU. stream: CUstream.
static void doubled(const at::Tensor& x, at::Tensor& out, uintptr_t function, uintptr_t stream) {
  const float* from = x.const_data_ptr<float>();
  float* to = out.mutable_data_ptr<float>();
  int n = static_cast<int>(x.numel());
  float off = kOff;
  if (function == 0) {
    for (int at = 0; at < n; ++at) to[at] = 2 * from[at] + (at == n - 1 ? off : 0.0f);
    return;
  }
  static const auto launch = reinterpret_cast<Launch>(dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuLaunchKernel"));
  void* arguments[] = {&from, &to, &n, &off};
  const int failed = launch(reinterpret_cast<void*>(function), (n + 255) / 256, 1, 1, 256, 1, 1, 0, reinterpret_cast<void*>(stream), arguments, nullptr);
  if (failed != 0) throw std::runtime_error("cuLaunchKernel failed");
}

PYBIND11_MODULE(og_doubled, module) { module.def("doubled", &doubled); }
