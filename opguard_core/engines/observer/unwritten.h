// Which bytes of a storage nobody has written yet: the gaps and the mask of storages.Storage.
//
// Dense writes cut ranges out of the gaps; strided ones are followed by a bitmap, one byte a byte, in host memory.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "geometry.h"

namespace opguard {

inline constexpr int64_t kMaskLimitBytes = int64_t{1} << 28;  // a bitmap of written elements is kept only up to this

// Guarded by its storage, but for `empty`.
class Unwritten {
 public:
  using Gap = std::pair<int64_t, int64_t>;  // bytes [first, second)

  bool empty() const { return !some_.load(std::memory_order_acquire); }
  const std::vector<Gap>& gaps() const { return gaps_; }

  void all(int64_t nbytes) {
    gaps_.clear();
    if (nbytes != 0) gaps_.emplace_back(0, nbytes);
    drop_mask();
    settle();
  }

  void grew(int64_t old_nbytes, int64_t nbytes) {
    if (nbytes > old_nbytes) gaps_.emplace_back(old_nbytes, nbytes);
    drop_mask();
    settle();
  }

  bool is_written(int64_t offset, const Geometry& geometry) const {
    if (gaps_.empty() || geometry.nbytes == 0) return true;
    const int64_t low = offset, high = offset + geometry.span;
    bool touched = false;
    for (const auto& [start, end] : gaps_) touched = touched || (start < high && low < end);
    if (!touched) return true;
    if (mask_.empty()) return false;
    bool whole = true;
    each_run(offset, geometry, [&](int64_t first, int64_t last) {
      for (int64_t byte = first; byte < last && whole; ++byte) whole = mask_[byte] != 0;
      return whole;
    });
    return whole;
  }

  void fill(int64_t offset, const Geometry& geometry, int64_t nbytes) {
    const int64_t low = offset, high = offset + geometry.span;
    if (geometry.span == geometry.nbytes) {
      std::vector<Gap> left;
      for (const auto& [start, end] : gaps_) {
        if (low <= start && end <= high) continue;
        if (high <= start || end <= low) {
          left.emplace_back(start, end);
          continue;
        }
        if (start < low) left.emplace_back(start, low);
        if (high < end) left.emplace_back(high, end);
      }
      gaps_.swap(left);
      if (!mask_.empty() && !gaps_.empty()) mark(offset, geometry);
    } else if (nbytes <= kMaskLimitBytes && offset % geometry.itemsize == 0) {
      if (static_cast<int64_t>(mask_.size()) < nbytes) new_mask(nbytes);
      mark(offset, geometry);
      if (unset_ == 0) gaps_.clear();
    }
    if (gaps_.empty()) drop_mask();
    settle();
  }

 private:
  void new_mask(int64_t nbytes) {
    mask_.assign(static_cast<size_t>(nbytes), 1);
    unset_ = 0;
    for (const auto& [start, end] : gaps_) {
      for (int64_t byte = start; byte < std::min(end, nbytes); ++byte) {
        unset_ += mask_[byte];
        mask_[byte] = 0;
      }
    }
  }

  void drop_mask() {
    std::vector<uint8_t>().swap(mask_);
    unset_ = 0;
  }

  void mark(int64_t offset, const Geometry& geometry) {
    each_run(offset, geometry, [&](int64_t first, int64_t last) {
      for (int64_t byte = first; byte < last; ++byte) {
        unset_ -= mask_[byte] == 0 ? 1 : 0;
        mask_[byte] = 1;
      }
      return true;
    });
  }

  // The byte ranges of a view's elements, some perhaps twice; until `visit` answers false.
  // Throws std::out_of_range for a view that is larger than the mask, as torch does.
  template <class Visit>
  void each_run(int64_t offset, const Geometry& geometry, Visit visit) const {
    if (geometry.nbytes == 0) return;
    if (offset + geometry.span > static_cast<int64_t>(mask_.size())) {
      throw std::out_of_range("a view of " + std::to_string(offset + geometry.span) + " bytes in a storage of " + std::to_string(mask_.size()));
    }
    const at::IntArrayRef sizes = geometry.sizes, steps = geometry.steps;
    // The innermost dimensions that lie densely behind one another are one run.
    size_t outer = sizes.size();
    int64_t run = 1;
    while (outer > 0 && (sizes[outer - 1] == 1 || steps[outer - 1] == run)) run *= sizes[--outer];
    std::vector<int64_t> index(outer, 0);
    int64_t place = offset;
    while (true) {
      if (!visit(place, place + run * geometry.itemsize)) return;
      size_t dim = outer;
      while (dim > 0) {
        --dim;
        place += steps[dim] * geometry.itemsize;
        if (++index[dim] < sizes[dim]) break;
        place -= steps[dim] * sizes[dim] * geometry.itemsize;
        index[dim] = 0;
        if (dim == 0) return;
      }
      if (outer == 0) return;
    }
  }

  void settle() { some_.store(!gaps_.empty(), std::memory_order_release); }

  std::atomic<bool> some_{false};
  std::vector<Gap> gaps_;
  std::vector<uint8_t> mask_;  // 1: written; empty: no mask
  int64_t unset_ = 0;          // zeros of the mask
};

}  // namespace opguard
