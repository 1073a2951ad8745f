// The stream that the calling thread's operators run on, as the driver knows it, from a build that may have no CUDA.
//
// Which of three ways is right, for torch 2.6 to 2.13:
// - `DeviceGuardImplInterface::getStream` gives a StreamId. For the default stream that is 0 and for a foreign stream its handle, but
//   for a stream of torch's pools it is a number of a pool, whose handle only libc10_cuda.so knows: not enough.
// - `getStreamNativeHandle` of the same interface gives the handle, but only since torch 2.10 or so.
// - `c10::cuda::getCurrentCUDAStream` and `CUDAStream::stream` of libc10_cuda.so do what torch's own operators do. Their signatures are
//   the same in all these versions; both take and return plain values of two words, so they are called here through the names that the
//   library exports. One thread-local read, no driver call.
// So the last way, and the second where those names are missing. A handle of 0 is the legacy default stream, which is what torch means
// by its default stream: torch is not built with per-thread default streams.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <dlfcn.h>

#include <cstdint>

namespace opguard {

namespace detail {

// c10::cuda::CUDAStream: a Stream and nothing else, so it is passed and returned like one.
struct CudaStreams {
  using Current = c10::Stream (*)(c10::DeviceIndex);
  using Handle = void* (*)(const c10::Stream*);
  Current current = nullptr;
  Handle handle = nullptr;

  static const CudaStreams& get() {
    static const CudaStreams streams = [] {
      CudaStreams found;
      // Loaded by torch, but not for everybody to see.
      if (void* library = dlopen("libc10_cuda.so", RTLD_LAZY | RTLD_NOLOAD)) {
        found.current = reinterpret_cast<Current>(dlsym(library, "_ZN3c104cuda20getCurrentCUDAStreamEa"));
        found.handle = reinterpret_cast<Handle>(dlsym(library, "_ZNK3c104cuda10CUDAStream6streamEv"));
      }
      return found;
    }();
    return streams;
  }
};

template <class Guard>
auto native_handle(const Guard* guard, c10::Stream stream, int) -> decltype(guard->getStreamNativeHandle(stream)) {
  return guard->getStreamNativeHandle(stream);
}
template <class Guard>
void* native_handle(const Guard*, c10::Stream, long) {
  throw std::runtime_error("this torch does not tell the handle of a CUDA stream");
}

}  // namespace detail

// Handle (cudaStream_t) of the stream that CUDA operators of the calling thread run on. Throws std::exception if torch cannot tell.
inline void* current_cuda_stream(int32_t device) {
  const auto& streams = detail::CudaStreams::get();
  if (streams.current != nullptr && streams.handle != nullptr) {
    const c10::Stream stream = streams.current(static_cast<c10::DeviceIndex>(device));
    return streams.handle(&stream);
  }
  const auto* guard = c10::impl::getDeviceGuardImpl(c10::DeviceType::CUDA);
  const auto stream = guard->getStream(c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(device)));
  return detail::native_handle(guard, stream, 0);
}

}  // namespace opguard
