// Storages and probes of the native observer by themselves, with what a test needs to drive them: tensors that claim to be on an
// NVIDIA device, a launcher whose records come when the test says so, and many threads without the interpreter lock.
#include <c10/core/CPUAllocator.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <chrono>
#include <thread>

#include "lanes_python.h"
#include "probes.h"

namespace py = pybind11;
using namespace opguard;

// A tensor in host memory that says it is on device cuda:`index`. No kernel can run on it.
static py::object on_device(const py::object& tensor, int index) {
  const at::Tensor& host = storages_python::tensor_of(tensor);
  const c10::Device device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(index));
  auto* held = new at::Tensor(host);
  c10::DataPtr data(const_cast<void*>(host.storage().data()), held, [](void* pointer) { delete static_cast<at::Tensor*>(pointer); }, device);
  c10::Storage storage(c10::Storage::use_byte_size_t(), host.storage().nbytes(), std::move(data), c10::GetCPUAllocator(), true);
  at::Tensor made = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CUDA), host.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(host.sizes(), host.strides(), host.storage_offset());
  return wrapped(made);
}

// A launcher that digests with the CPU twin at once and delivers when it is told to.
struct Played {
  std::mutex mutex;
  Twin::Function twin = nullptr;
  uint64_t tickets = 0;
  bool refuses = false, loses = false;
  std::vector<og_record> held, ready;
  std::vector<std::tuple<int32_t, uintptr_t, int32_t>> submits;
};
static Played played;

static uint64_t submit(int32_t device, void* stream, const og_view* views, int32_t n, uint32_t) {
  std::lock_guard<std::mutex> lock(played.mutex);
  if (played.refuses) return 0;
  played.submits.emplace_back(device, reinterpret_cast<uintptr_t>(stream), n);
  const uint64_t first = played.tickets + 1;
  for (int32_t at = 0; at < n; ++at) {
    const og_view& view = views[at];
    Plan plan;
    plan.widening = view.widening;
    plan.item_bytes = view.item_bytes;
    plan.component_bytes = view.component_bytes;
    plan.num_dims = view.num_dims;
    plan.numel = view.numel;
    std::copy(view.flip, view.flip + 2, plan.flip);
    std::copy(view.sizes, view.sizes + view.num_dims, plan.shape);
    std::copy(view.strides, view.strides + view.num_dims, plan.strides);
    uint64_t words[6] = {view.data};
    played.twin(&plan, words);
    og_record record = {};
    record.ticket = ++played.tickets;
    record.mix64 = words[0], record.value64 = words[1], record.bag64 = words[2], record.xor64 = words[3];
    record.flags = (words[4] ? OG_TRIVIAL : 0) | (played.loses ? OG_LOST : 0);
    record.t_device_ns = 1000 + record.ticket;
    played.held.push_back(record);
  }
  return first;
}

static int32_t take(og_record* out, int32_t most) {
  std::lock_guard<std::mutex> lock(played.mutex);
  int32_t count = 0;
  for (; count < most && !played.ready.empty(); ++count) {
    out[count] = played.ready.back();  // in no order
    played.ready.pop_back();
  }
  return count;
}

static void deliver() {
  std::lock_guard<std::mutex> lock(played.mutex);
  played.ready.insert(played.ready.end(), played.held.begin(), played.held.end());
  played.held.clear();
}

// As `deliver`, and the device loses the last one.
static void deliver_but_last() {
  {
    std::lock_guard<std::mutex> lock(played.mutex);
    if (!played.held.empty()) played.held.back().flags |= OG_LOST;
  }
  deliver();
}

static const og_probe_api api = {OG_API_VERSION, &submit, &take, [] { return played.tickets; }, [](uint64_t, int64_t) { deliver(); },
                                 [] { return "the test refuses"; }};

// Every thread looks at all tensors `times` times as an operator does; nanoseconds a look, as one thread sees it.
static double look_at(Probes& probes, const std::vector<at::Tensor>& tensors, int num_threads, int times, bool reads) {
  py::gil_scoped_release released;
  const Code path = probes.texts().slot.code("in.0");
  const auto work = [&] {
    for (int time = 0; time < times; ++time) {
      Slots slots;
      for (const at::Tensor& tensor : tensors) {
        probes.input(slots, time, path, tensor, reads);
        probes.mutated(slots, time, path, tensor, true, reads);
      }
      probes.launch(slots);
    }
  };
  const auto start = std::chrono::steady_clock::now();
  std::vector<std::thread> threads;
  for (int at = 0; at < num_threads; ++at) threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();
  const std::chrono::duration<double, std::nano> taken = std::chrono::steady_clock::now() - start;
  return taken.count() / (2.0 * times * static_cast<double>(tensors.size()));
}

// Threads that make tensors, look at them and let them go, while another polls; number of storages that polls have told of.
static size_t come_and_go(Probes& probes, int num_threads, int times) {
  py::gil_scoped_release released;
  const Code path = probes.texts().slot.code("out.0");
  std::atomic<bool> done{false};
  size_t told = 0;
  std::thread polling([&] {
    while (!done.load()) told += probes.storages().poll(1).size();
    told += probes.storages().poll(1).size();
  });
  std::vector<std::thread> threads;
  for (int at = 0; at < num_threads; ++at) {
    threads.emplace_back([&] {
      for (int time = 0; time < times; ++time) {
        const at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
            c10::Storage(c10::Storage::use_byte_size_t(), 64, c10::GetCPUAllocator()->allocate(64), c10::GetCPUAllocator(), true),
            c10::DispatchKeySet(c10::DispatchKey::CPU), caffe2::TypeMeta::Make<float>());
        tensor.unsafeGetTensorImpl()->set_sizes_contiguous({2, 8});
        Slots slots;
        probes.output(slots, time, path, tensor, time % 2 == 0);
        probes.input(slots, time, path, tensor);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  done = true;
  polling.join();
  return told;
}

// Rows of an input, and of a second look that tells an undeclared write, with `between` called in the middle.
static py::list look_twice(Probes& probes, int64_t seq, const py::object& tensor, const py::function& between) {
  const at::Tensor& looked_at = storages_python::tensor_of(tensor);
  Slots slots;
  probes.input(slots, seq, probes.texts().slot.code("in.0"), looked_at);
  probes.launch(slots);
  between();
  probes.undeclared(slots, seq, probes.texts().slot.code("mut.0"), looked_at, 0);
  probes.launch(slots);
  py::list rows;
  for (const SlotRow& row : slots.rows) {
    rows.append(py::make_tuple(probes_python::row_of(probes.texts(), seq, row), row.content));
  }
  return rows;
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  Texts::bind(module);
  bind_lanes(module);
  Outbox::bind(module);
  bind_probes(module);
  py::class_<Content>(module, "Content")
      .def_property_readonly("ready", &Content::ready)
      .def_property_readonly("lost", &Content::lost)
      .def_property_readonly("present", &Content::present);
  module.def("on_device", &on_device);
  module.def("play", [](Fingerprints& fingerprints) {
    std::lock_guard<std::mutex> lock(played.mutex);
    played.twin = fingerprints.twin().function();
    played.refuses = played.loses = false;
    played.held.clear(), played.ready.clear(), played.submits.clear();
    fingerprints.set_stream_of([](int32_t device) { return reinterpret_cast<void*>(uintptr_t{0x1000} + static_cast<uintptr_t>(device)); });
    return py::capsule(&api, "opguard.probe_api");
  });
  // Another launcher's tensors: on this stream.
  module.def("run_on", [](Fingerprints& fingerprints, uintptr_t handle) {
    static uintptr_t stream = 0;
    stream = handle;
    fingerprints.set_stream_of([](int32_t) { return reinterpret_cast<void*>(stream); });
  });
  module.def("deliver", &deliver);
  module.def("deliver_but_last", &deliver_but_last);
  module.def("refuse", [](bool now) { played.refuses = now; });
  module.def("lose", [](bool now) { played.loses = now; });
  module.def("submits", [] { return played.submits; });
  module.def("submit_for_others", [](Fingerprints& fingerprints, const py::object& tensor) {
    Geometries geometries(std::make_shared<Texts>());
    const at::Tensor& host = storages_python::tensor_of(tensor);
    const og_view view = geometries.of(host)->reader(fingerprints.twin(), false, false).view(reinterpret_cast<uintptr_t>(host.storage().data()));
    return submit(0, nullptr, &view, 1, 0);
  });
  module.def("look_at", [](Probes& probes, const std::vector<py::object>& tensors, int num_threads, int times, bool reads) {
    std::vector<at::Tensor> unwrapped;
    for (const py::object& tensor : tensors) unwrapped.push_back(storages_python::tensor_of(tensor));
    return look_at(probes, unwrapped, num_threads, times, reads);
  });
  module.def("come_and_go", &come_and_go);
  module.def("look_twice", &look_twice);
}
