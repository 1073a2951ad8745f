// Random state: which generator an operator consumed, and what it held before. Mirrors randomness.py.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/Generator.h>

#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "operators.h"
#include "readers.h"
#include "texts.h"

namespace opguard {

// mix64 of a host tensor of bytes: a generator's state.
inline uint64_t mix64_of_bytes(const Twin& twin, const at::Tensor& bytes) {
  const at::Tensor dense = bytes.contiguous();
  const Reader reader(twin.element("uint8"), dense.sizes(), dense.strides(), false, false);
  if (!reader.fits || twin.function() == nullptr) throw std::runtime_error("there is no compiled fingerprint");
  return reader.read(twin.function(), dense.const_data_ptr()).mix64;
}

// Names generators and reads their states. Reading moves nothing. Names of others than the default ones come from Python's
// `Generators`, which numbers them by first use; it holds them, so that no address is met twice.
class Generators {
 public:
  // digest: mix64 of a host tensor's bytes. ask: name of a generator, from Python.
  Generators(Texts& texts, std::function<uint64_t(const at::Tensor&)> digest, std::function<std::string(const at::Generator&)> ask)
      : texts_(texts), digest_(std::move(digest)), ask_(std::move(ask)) {}

  // The generator a random operator is about to use, undefined if it cannot be told.
  static at::Generator used_by(const OperatorPlan& plan, c10::ArrayRef<c10::IValue> values, std::optional<at::Device> device) {
    for (const auto& value : values) {
      if (value.isGenerator()) return value.toGenerator();
    }
    if (plan.device >= 0 && values[static_cast<size_t>(plan.device)].isDevice()) device = values[static_cast<size_t>(plan.device)].toDevice();
    return standard(device);
  }

  Code name(const at::Generator& generator) {
    const at::Device device = generator.device();
    const bool standard_one = generator == standard(device);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      auto known = names_.find(generator.unsafeGetGeneratorImpl());
      if (known != names_.end()) return known->second;
    }
    const Code code = texts_.rng_stream.of(standard_one ? device.str() : ask_(generator));
    std::lock_guard<std::mutex> lock(mutex_);
    names_.emplace(generator.unsafeGetGeneratorImpl(), code);
    return code;
  }

  // mix64 of a generator's state; none where it may not be asked for (while a CUDA graph is recorded).
  // Cost: copies 5 kB on CPU, 16 bytes on CUDA, and compares them with the last state: most are asked for without having been drawn from
  // since. No synchronisation.
  std::optional<uint64_t> digest(const at::Generator& generator) {
    at::AutoDispatchBelowADInplaceOrView below;
    at::Tensor state;
    try {
      state = generator.get_state().contiguous();
    } catch (const c10::Error&) {
      return std::nullopt;
    }
    const std::string_view bytes(static_cast<const char*>(state.const_data_ptr()), state.nbytes());
    {
      std::lock_guard<std::mutex> lock(mutex_);
      const auto last = last_.find(generator.unsafeGetGeneratorImpl());
      if (last != last_.end() && last->second.first == bytes) return last->second.second;
    }
    const uint64_t found = digest_(state);
    std::lock_guard<std::mutex> lock(mutex_);
    last_[generator.unsafeGetGeneratorImpl()] = {std::string(bytes), found};
    return found;
  }

 private:
  // A device's default generator.
  static at::Generator standard(std::optional<at::Device> device) {
    if (!device || device->is_cpu() || device->is_meta()) return at::detail::getDefaultCPUGenerator();
    // Only where the program has set the device up: asking would do so.
    if (device->is_cuda() && at::globalContext().hasCUDA() && at::detail::getCUDAHooks().hasPrimaryContext(device->has_index() ? device->index() : 0)) {
      return at::globalContext().defaultGenerator(device->has_index() ? *device : at::Device(at::kCUDA, at::detail::getCUDAHooks().getCurrentDevice()));
    }
    return {};
  }

  Texts& texts_;
  std::function<uint64_t(const at::Tensor&)> digest_;
  std::function<std::string(const at::Generator&)> ask_;
  std::mutex mutex_;
  std::unordered_map<c10::GeneratorImpl*, Code> names_;
  std::unordered_map<c10::GeneratorImpl*, std::pair<std::string, uint64_t>> last_;  // state and digest; an address met again is no harm
};

}  // namespace opguard
