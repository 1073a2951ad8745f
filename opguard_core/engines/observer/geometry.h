// Texts and byte spans of a tensor's dtype, shape and strides, computed once per distinct geometry. Mirrors geometry.py.
#pragma once

#include <ATen/core/DimVector.h>
#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/DynamicTypes.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "readers.h"
#include "texts.h"

namespace opguard {

class Geometry;
using GeometryRef = c10::intrusive_ptr<Geometry>;

// What a slot row says about dtype, shape and strides. Immutable; two geometries are the same if they are the same object.
class Geometry : public c10::intrusive_ptr_target {
 public:
  // base: see `base()`; null for one that is its own.
  Geometry(std::shared_ptr<Texts> texts, at::ScalarType kind, at::IntArrayRef sizes, at::IntArrayRef steps, GeometryRef base = {})
      : kind(kind),
        sizes(sizes.begin(), sizes.end()),
        steps(steps.begin(), steps.end()),
        texts(std::move(texts)),
        dtype(this->texts->dtype.code(dtype_name(kind))),
        shape(this->texts->shape.code(joined(sizes))),
        strides(this->texts->strides.code(joined(steps))),
        itemsize(static_cast<int64_t>(c10::elementSize(kind))),
        base_(std::move(base)) {
    int64_t count = 1, reach = 1;
    for (size_t index = 0; index < sizes.size(); ++index) {
      count *= sizes[index];
      reach += (sizes[index] - 1) * steps[index];
    }
    nbytes = count * itemsize;
    span = count ? reach * itemsize : 0;
  }

  ~Geometry() override {
    for (auto& reader : readers_) delete reader.load();
  }

  const at::ScalarType kind;
  const at::DimVector sizes, steps;  // the shape and the strides (in elements) as they came
  const std::shared_ptr<Texts> texts;
  const Code dtype, shape, strides;         // "float32", "4,8", "8,1" in the texts of their columns
  const int64_t itemsize;
  int64_t nbytes;  // logical bytes
  int64_t span;    // from the first element to one past the last in memory; equals nbytes if and only if dense

  // The geometry with the fewest dimensions of which a view at the same place has the same logical bytes, and so the same digests.
  // Lives as long as this one.
  const Geometry* base() const { return base_ ? base_.get() : this; }

  // Sizes and strides without dimensions of length one, and with those joined that lie densely in one another.
  static std::pair<at::DimVector, at::DimVector> merged(at::IntArrayRef sizes, at::IntArrayRef steps) {
    if (std::find(sizes.begin(), sizes.end(), 0) != sizes.end()) return {{0}, {1}};
    return merge_dimensions(sizes, steps);
  }

  // How such memory is read, worked out on first use for each of the four kinds of view.
  const Reader& reader(const Twin& twin, bool conjugate, bool negative) const {
    auto& place = readers_[(conjugate ? 1 : 0) + (negative ? 2 : 0)];
    const Reader* known = place.load(std::memory_order_acquire);
    if (known != nullptr) return *known;
    auto made = std::make_unique<const Reader>(twin.element(dtype_name(kind)), sizes, steps, conjugate, negative);
    if (place.compare_exchange_strong(known, made.get(), std::memory_order_acq_rel)) return *made.release();
    return *known;  // another thread was faster
  }

  // Name of a dtype as Python says it, without "torch.".
  static const char* dtype_name(at::ScalarType kind) { return torch::getTHPDtype(kind)->name; }

 private:
  static std::string joined(at::IntArrayRef numbers) {
    std::string text;
    for (const int64_t number : numbers) {
      if (!text.empty()) text += ',';
      text += std::to_string(number);
    }
    return text;
  }

  const GeometryRef base_;
  mutable std::array<std::atomic<const Reader*>, 4> readers_{};
};

// All geometries seen; forgets everything when a program with ever-new shapes fills it. Any thread, no GIL.
class Geometries {
 public:
  static constexpr size_t kLimit = 1 << 16;

  explicit Geometries(std::shared_ptr<Texts> texts) : texts_(std::move(texts)), table_(kSmallest) {}

  // Geometry of a plain tensor (kinds.h): strided, no symbolic sizes. Cost: about 0.05 us once known.
  GeometryRef of(const at::Tensor& tensor) {
    return of(tensor.scalar_type(), tensor.sizes(), tensor.strides());
  }

  GeometryRef of(at::ScalarType kind, at::IntArrayRef sizes, at::IntArrayRef steps) {
    const size_t hash = hash_of(kind, sizes, steps);
    {
      std::vector<Place> forgotten;  // freed after the lock
      std::lock_guard<std::mutex> lock(mutex_);
      const GeometryRef& known = table_[place_of(hash, kind, sizes, steps)].geometry;
      if (known) return known;
      if (size_ >= kLimit) {
        forgotten.assign(kSmallest, {});
        forgotten.swap(table_);
        size_ = 0;
      }
    }
    const auto [joined_sizes, joined_steps] = Geometry::merged(sizes, steps);
    const bool is_base = sizes.equals(joined_sizes) && steps.equals(joined_steps);
    auto made = c10::make_intrusive<Geometry>(texts_, kind, sizes, steps, is_base ? GeometryRef() : of(kind, joined_sizes, joined_steps));
    std::lock_guard<std::mutex> lock(mutex_);
    if (2 * (size_ + 1) > table_.size()) grow();
    Place& place = table_[place_of(hash, kind, sizes, steps)];
    if (place.geometry) return place.geometry;  // another thread was faster
    place = {hash, made};
    ++size_;
    return made;
  }

  size_t size() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return size_;
  }

 private:
  static constexpr size_t kSmallest = 1 << 8;

  struct Place {
    size_t hash = 0;
    GeometryRef geometry;
  };

  static size_t hash_of(at::ScalarType kind, at::IntArrayRef sizes, at::IntArrayRef steps) {
    uint64_t hash = static_cast<uint64_t>(kind) + (sizes.size() << 8);
    const auto mix = [&hash](int64_t number) {
      hash = (hash ^ static_cast<uint64_t>(number)) * 0x9E3779B97F4A7C15ull;
      hash ^= hash >> 29;
    };
    for (const int64_t size : sizes) mix(size);
    for (const int64_t step : steps) mix(step);
    return hash ^ (hash >> 32);
  }

  // Where a geometry stands in the table, or would.
  size_t place_of(size_t hash, at::ScalarType kind, at::IntArrayRef sizes, at::IntArrayRef steps) const {
    const size_t mask = table_.size() - 1;
    for (size_t place = hash & mask;; place = (place + 1) & mask) {
      const Place& found = table_[place];
      if (!found.geometry) return place;
      if (found.hash == hash && found.geometry->kind == kind && sizes.equals(found.geometry->sizes) && steps.equals(found.geometry->steps)) {
        return place;
      }
    }
  }

  void grow() {
    std::vector<Place> smaller(2 * table_.size());
    smaller.swap(table_);
    const size_t mask = table_.size() - 1;
    for (Place& old : smaller) {
      if (!old.geometry) continue;
      size_t place = old.hash & mask;
      while (table_[place].geometry) place = (place + 1) & mask;
      table_[place] = std::move(old);
    }
  }

  const std::shared_ptr<Texts> texts_;
  mutable std::mutex mutex_;
  std::vector<Place> table_;
  size_t size_ = 0;
};

}  // namespace opguard
