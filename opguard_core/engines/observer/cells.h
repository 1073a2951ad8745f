// Digests that may still be on their way from a device.
//
// A `Cell` is shared by the slot of the probe and by every slot that carries its digests; the record of its ticket fills it, once.
// What a trace writer has to ask of a slot's `Content`: is it `ready`, is the slot `present` at all, is it `lost`, and then `get`.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "blocks.h"
#include "probe_api.h"

namespace opguard {

// fingerprint.digest.Digests.
struct Digests {
  uint64_t mix64 = 0, value64 = 0, bag64 = 0;
  uint32_t xor32 = 0;
  bool trivial = false;
  uint64_t nbytes = 0;
};

// One probe: waiting for its record, then ready or lost for good. Filled by one thread, read by any.
class Cell : public c10::intrusive_ptr_target, public InBlocks {
 public:
  enum class State : uint8_t { waiting, ready, lost };

  // seq: the event that asked for it. touches_state: whether losing it is a gap in training state.
  Cell(uint64_t seq, uint64_t nbytes, bool touches_state) : seq(seq), touches_state(touches_state) { digests_.nbytes = nbytes; }

  const uint64_t seq;
  const bool touches_state;
  std::atomic<uint64_t> ticket{0};  // 0 until launched

  State state() const { return state_.load(std::memory_order_acquire); }
  const Digests& digests() const { return digests_; }   // once ready
  uint64_t t_device_ns() const { return t_device_ns_; }  // device clock of the probe, once ready

  // True once in the life of a lost cell: whoever gets it counts the gap.
  bool claim_loss() { return state() == State::lost && !claimed_.exchange(true); }

  void keep(const Digests& digests, uint64_t t_device_ns) {
    if (state() != State::waiting) return;  // a replayed graph repeats the tickets of its capture
    digests_ = digests;
    t_device_ns_ = t_device_ns;
    state_.store(State::ready, std::memory_order_release);
  }

  void keep(const og_record& record) {
    if (record.flags & OG_LOST) return lose();
    const auto folded = static_cast<uint32_t>(record.xor64 ^ (record.xor64 >> 32));
    keep({record.mix64, record.value64, record.bag64, folded, (record.flags & OG_TRIVIAL) != 0, digests_.nbytes}, record.t_device_ns);
  }

  void lose() {
    State waiting = State::waiting;
    state_.compare_exchange_strong(waiting, State::lost, std::memory_order_acq_rel);
  }

 private:
  Digests digests_;
  uint64_t t_device_ns_ = 0;
  std::atomic<State> state_{State::waiting};
  std::atomic<bool> claimed_{false};
};

using CellRef = c10::intrusive_ptr<Cell>;

// What is known of a slot's bytes: final digests, or a cell that will have them.
struct Content {
  Digests digests;
  CellRef cell;    // null: `digests` are final
  CellRef unless;  // not null: the slot is there only if its digests differ from these (an undeclared write)

  bool ready() const { return arrived(cell) && arrived(unless); }
  // Once ready.
  bool lost() const { return cell && cell->state() == Cell::State::lost; }
  // Once ready. Where one of the two looks is lost there is no slot, since nobody knows of a difference: the loss of the first is told
  // by its own slot, that of the second by nothing else, see `hides`.
  bool present() const { return !unless || (unless->state() == Cell::State::ready && !lost() && get().mix64 != unless->digests().mix64); }
  // Once ready: whether a loss hides what happened, and no slot tells it.
  bool hides() const { return unless && unless->state() == Cell::State::ready && lost(); }
  // Once ready and not lost.
  const Digests& get() const { return cell ? cell->digests() : digests; }

 private:
  static bool arrived(const CellRef& cell) { return !cell || cell->state() != Cell::State::waiting; }
};

// Cells by ticket. Tickets are given out in order and come back nearly so: a row of places, and a table for those that stay behind (of
// graphs that are recorded and never run). Not locked.
class ByTicket {
 public:
  void add(uint64_t ticket, CellRef cell) {
    ++size_;
    if (row_.empty()) first_ = ticket;
    if (ticket < first_ || ticket - first_ >= 2 * kRow) {
      behind_.emplace(ticket, std::move(cell));
      return;
    }
    while (ticket - first_ >= row_.size()) row_.emplace_back();
    row_[ticket - first_] = std::move(cell);
    if (row_.size() > kRow) leave_behind();
  }

  // Null if there is none.
  CellRef take(uint64_t ticket) {
    CellRef found;
    if (ticket >= first_ && ticket - first_ < row_.size()) {
      found = std::move(row_[ticket - first_]);
      while (!row_.empty() && !row_.front()) pop();
    }
    if (!found && !behind_.empty()) {
      const auto old = behind_.find(ticket);
      if (old != behind_.end()) {
        found = std::move(old->second);
        behind_.erase(old);
      }
    }
    if (found) --size_;
    return found;
  }

  std::vector<CellRef> take_all() {
    std::vector<CellRef> all;
    for (CellRef& cell : row_) {
      if (cell) all.push_back(std::move(cell));
    }
    for (auto& [ticket, cell] : behind_) all.push_back(std::move(cell));
    row_.clear();
    behind_.clear();
    size_ = 0;
    return all;
  }

  size_t size() const { return size_; }

 private:
  static constexpr uint64_t kRow = 1 << 16;

  void pop() {
    row_.pop_front();
    ++first_;
  }
  void leave_behind() {
    while (row_.size() > kRow / 2) {
      if (row_.front()) behind_.emplace(first_, std::move(row_.front()));
      pop();
    }
    while (!row_.empty() && !row_.front()) pop();
  }

  std::deque<CellRef> row_;
  uint64_t first_ = 0;
  std::unordered_map<uint64_t, CellRef> behind_;
  size_t size_ = 0;
};

// The cells that wait, by ticket. Any thread; needs no GIL; no lock is held while anything else is called.
//
//   begin_launch -> submit -> expect        (the operator's thread)
//   take -> resolve                         (whoever writes the trace)
class Cells {
 public:
  static constexpr size_t kMostOthers = 1 << 16;  // records kept for somebody else to take; more are dropped

  // Records may come before their tickets are known here. Every call is followed by one of `expect`.
  void begin_launch() {
    std::lock_guard<std::mutex> lock(mutex_);
    ++launching_;
  }

  // `cells[i]` waits for ticket `first + i`. `first` 0: nothing was launched, all are lost.
  void expect(uint64_t first, const std::vector<CellRef>& cells) {
    if (first == 0) {
      for (const CellRef& cell : cells) cell->lose();
    }
    std::lock_guard<std::mutex> lock(mutex_);
    --launching_;
    if (first == 0) return;
    for (size_t index = 0; index < cells.size(); ++index) {
      const uint64_t ticket = first + index;
      cells[index]->ticket.store(ticket, std::memory_order_relaxed);
      auto early = unknown_.empty() ? unknown_.end() : unknown_.find(ticket);
      if (early == unknown_.end()) {
        waiting_.add(ticket, cells[index]);
      } else {
        cells[index]->keep(early->second);
        unknown_.erase(early);
      }
    }
    if (waiting_.size() > most_) most_ = waiting_.size();
  }

  // Fill cells from finished records. One whose ticket is not known here is kept for `expect` and `take_others`.
  void resolve(const og_record* records, int32_t count) {
    std::vector<CellRef> done;  // let go of after the lock
    std::lock_guard<std::mutex> lock(mutex_);
    for (int32_t index = 0; index < count; ++index) {
      const og_record& record = records[index];
      if (CellRef found = waiting_.take(record.ticket)) {
        found->keep(record);
        done.push_back(std::move(found));
      } else if (record.occurrence == 0 && unknown_.size() < kMostOthers) {
        unknown_.emplace(record.ticket, record);
      }
    }
  }

  // `resolve` everything that the launcher has ready; returns the number of records taken. Never blocks.
  int32_t poll(const og_probe_api& api) {
    constexpr int32_t kAtOnce = 256;
    og_record records[kAtOnce];
    int32_t total = 0;
    while (true) {
      const int32_t count = api.take(records, kAtOnce);
      if (count <= 0) return total;
      resolve(records, count);
      total += count;
      if (count < kAtOnce) return total;
    }
  }

  // Records of the same launcher that nobody here waits for: of probes that were asked for from Python.
  std::vector<og_record> take_others() {
    std::vector<og_record> others;
    std::lock_guard<std::mutex> lock(mutex_);
    if (launching_ != 0) return others;  // one may still turn out to be ours
    for (const auto& [ticket, record] : unknown_) others.push_back(record);
    unknown_.clear();
    return others;
  }

  // Give up what still waits: all are lost. Returns how many that were.
  size_t abandon() {
    std::vector<CellRef> left;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      left = waiting_.take_all();
    }
    for (const CellRef& cell : left) cell->lose();
    return left.size();
  }

  size_t waiting() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return waiting_.size();
  }

  // Most that ever waited at once.
  size_t most() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return most_;
  }

 private:
  mutable std::mutex mutex_;
  ByTicket waiting_;
  std::unordered_multimap<uint64_t, og_record> unknown_;  // one may come in several regions
  size_t launching_ = 0, most_ = 0;
};

}  // namespace opguard
