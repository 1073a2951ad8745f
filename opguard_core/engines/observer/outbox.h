// Hands events on in the order their operators began, although they finish in another. Mirrors outbox.py.
//
//   operator -> open ... close -> waiting (in order of begin) -> ready (digests may still be on their way) -> drain.h -> trace
//
// An event takes its place when it begins and is handed on once it and all before it are complete; it leaves for the trace once the
// digests of its slots are there, too. Nothing here needs the GIL, and no lock is held while Python, or anyone's callback, runs.
//
// Memory is bounded: beyond `budget_bytes` the thread that completes an event waits for the writer (or drops, as asked); where waiting
// could not help, because nothing is ready to leave, events are let in up to twice the budget and dropped, exactly counted, beyond.
#pragma once

#include <pybind11/pybind11.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "blocks.h"
#include "lanes.h"
#include "rows.h"
#include "texts.h"

namespace opguard {

inline constexpr size_t MAX_WAITING_EVENTS = 1 << 14;
inline constexpr size_t CHUNK_EVENTS = 2048;  // wakes the writer; each time it takes the interpreter lock from the program for a moment
inline constexpr auto DEVICE_POLL = std::chrono::milliseconds(10);  // between two looks for digests, while any are on their way

// Why an event has no row; texts of trace/drops.py.
enum class Loss : uint8_t { none, buffer_full, encode, writer_closed };
inline const char* text_of(Loss loss) {
  constexpr const char* texts[] = {"", "buffer-full", "encode", "writer-closed"};
  return texts[static_cast<size_t>(loss)];
}

// A Python object that may be let go of on any thread.
class Held {
 public:
  explicit Held(pybind11::object object) : object_(object.release().ptr()) {}
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  ~Held() {
    if (object_ == nullptr || Py_IsInitialized() == 0) return;
    pybind11::gil_scoped_acquire gil;
    Py_DECREF(object_);
  }
  pybind11::handle get() const { return object_; }

 private:
  PyObject* object_;
};

// The place of one event; `closed` once it is complete. `operator_` and `lane` say what it will be, should the program end first.
class Outbox;
struct Entry {
  Outbox* outbox = nullptr;
  uint64_t seq = 0;
  Code operator_ = NO_TEXT;
  std::shared_ptr<Lane> lane;  // may be null
  bool closed = false;         // guarded by the outbox
  Loss loss = Loss::none;
  bool names_state = false;  // the operator has been seen reading state; for `finish`
  bool has_cells = false;
  uint32_t num_bytes = 0;
  EventRow event;
  SlotRows slots;
  std::function<void()> unblock;   // see `Outbox::set_unblock`
  std::shared_ptr<Held> gathered;  // slots that Python is still adding to
  std::string error;
};
using EntryRef = std::shared_ptr<Entry>;

// A slot, or a cell that slots may share, whose digests are a Python promise (probe/promise.py): filled by `Outbox::look_at_promises`.
struct Promised {
  EntryRef entry;  // null where `cell` is given
  size_t slot;
  std::shared_ptr<Held> promise;
  CellRef cell{};
};

class Drain;

class Outbox {
 public:
  // texts: the session's. budget_bytes: of everything that is complete and not yet committed by the writer.
  // wait_when_full: the thread that completes an event waits for room; otherwise events are dropped until half is free again.
  explicit Outbox(std::shared_ptr<Texts> texts, int64_t budget_bytes = 64 << 20, bool wait_when_full = true)
      : texts_(std::move(texts)), budget_bytes_(budget_bytes), wait_when_full_(wait_when_full), sync_(std::make_unique<Sync>()) {}

  // Take the next place. Cost: about 0.1 us, no GIL.
  EntryRef open(Code operator_, std::shared_ptr<Lane> lane = nullptr) {
    auto entry = std::allocate_shared<Entry>(BlockAllocator<Entry>());
    entry->outbox = this;
    entry->operator_ = operator_;
    entry->lane = std::move(lane);
    if (entry->lane) entry->lane->num_events.fetch_add(1, std::memory_order_relaxed);
    if (dead_.load(std::memory_order_relaxed)) return entry;
    std::lock_guard<std::mutex> lock(sync_->mutex);
    entry->seq = next_seq_++;
    waiting_.push_back(entry);
    return entry;
  }

  // Complete an event (its `seq` is set here) and hand on every event that is ready; one that `finish` has completed is only counted.
  // May wait for the writer when full; with the GIL or without it (it is let go while waiting).
  // Cost: about 0.2 us.
  void close(const EntryRef& entry, EventRow&& event, SlotRows&& slots) { complete(entry, std::move(event), std::move(slots), Loss::none, {}); }

  // Complete an event that has no row.
  void lose(const EntryRef& entry, Loss loss, std::string error) { complete(entry, {}, {}, loss, std::move(error)); }

  // What completes this entry as it is, set while it waits for a consumer; called without any lock, once. Null: nothing any more.
  void set_unblock(const EntryRef& entry, std::function<void()> unblock) {
    std::lock_guard<std::mutex> lock(sync_->mutex);
    entry->unblock.swap(unblock);
  }

  // Complete every entry that still waits for a consumer.
  void settle() {
    std::vector<std::function<void()>> pending;
    {
      std::lock_guard<std::mutex> lock(sync_->mutex);
      for (const EntryRef& entry : waiting_) {
        if (!entry->closed && entry->unblock) pending.push_back(std::exchange(entry->unblock, {}));
      }
    }
    for (const auto& unblock : pending) unblock();
  }

  // The capture ends: complete and hand on everything. `unfinished` makes the event of an entry whose operator has not come back.
  // Returns those entries; who closes one later, or a new one, is counted in `num_late`.
  template <class Unfinished>
  std::vector<EntryRef> finish(const Unfinished& unfinished) {
    settle();
    std::vector<EntryRef> left;
    {
      std::lock_guard<std::mutex> lock(sync_->mutex);
      finished_ = true;
      for (const EntryRef& entry : waiting_) {
        if (!entry->closed) left.push_back(entry);
      }
      sync_->room.notify_all();
    }
    for (const EntryRef& entry : left) {
      EventRow event;
      std::string error;
      Loss loss = Loss::none;
      try {
        event = unfinished(entry);
      } catch (const std::exception& failure) {
        loss = Loss::encode;
        error = failure.what();
      }
      std::lock_guard<std::mutex> lock(sync_->mutex);
      put(entry, std::move(event), {}, loss, std::move(error));
    }
    std::lock_guard<std::mutex> lock(sync_->mutex);
    hand_on();
    return left;
  }

  // Number the next event will get.
  uint64_t next_seq() const { return next_seq_.load(std::memory_order_relaxed); }
  // Every event before this one is complete and handed on.
  uint64_t oldest_open() const { return oldest_open_.load(std::memory_order_relaxed); }
  // Closed after `finish`.
  uint64_t num_late() const { return num_late_.load(std::memory_order_relaxed); }
  Texts& texts() { return *texts_; }
  const std::shared_ptr<Texts>& shared_texts() const { return texts_; }

  // The writer's side; one thread at a time.

  // Called by `drain` and while waiting, without locks and without the GIL: fills cells with what a device has delivered.
  void set_poll(std::function<void()> poll) { poll_ = std::move(poll); }

  // From now on emitters may wait: someone drains.
  void attach() {
    std::lock_guard<std::mutex> lock(sync_->mutex);
    attached_ = true;
  }

  // Wait until there is work (a chunk, the end of a window, lack of room, `wake`), or until the time is over (negative: for ever).
  void wait(double timeout_s) {
    const auto start = std::chrono::steady_clock::now();
    std::unique_lock<std::mutex> lock(sync_->mutex);
    while (!wake_) {
      auto pause = std::chrono::duration<double>(timeout_s) - (std::chrono::steady_clock::now() - start);
      if (timeout_s >= 0 && pause.count() <= 0) break;
      const bool on_the_way = num_leaving_ < ready_.size();
      if (on_the_way && (timeout_s < 0 || pause > DEVICE_POLL)) {
        sync_->work.wait_for(lock, DEVICE_POLL);
        poll_unlocked(lock);
        advance();
        if (num_promised() > 0) break;  // only `drain` can look at those
      } else {
        resting_ = true;
        if (timeout_s < 0) sync_->work.wait(lock);
        else sync_->work.wait_for(lock, pause);
        resting_ = false;
      }
    }
    wake_ = false;
  }

  void wake() {
    std::lock_guard<std::mutex> lock(sync_->mutex);
    wake_writer();
  }

  // Up to `max_events` events that may leave, oldest first.
  std::vector<EntryRef> take(size_t max_events) {
    std::unique_lock<std::mutex> lock(sync_->mutex);
    if (num_leaving_ < ready_.size()) {
      poll_unlocked(lock);
      advance();
    }
    const size_t count = std::min(max_events, num_leaving_);
    std::vector<EntryRef> taken(std::make_move_iterator(ready_.begin()), std::make_move_iterator(ready_.begin() + count));
    ready_.erase(ready_.begin(), ready_.begin() + static_cast<std::ptrdiff_t>(count));
    num_leaving_ -= count;
    for (const EntryRef& entry : taken) taken_bytes_ += entry->num_bytes;
    return taken;
  }

  // This much of what was taken is no longer held (negative: more is).
  void release(int64_t num_bytes) {
    std::lock_guard<std::mutex> lock(sync_->mutex);
    held_bytes_ -= num_bytes;
    taken_bytes_ -= num_bytes;
    sync_->room.notify_all();
  }

  // Whether an emitter waits, or drops, for lack of room.
  bool pressed() const {
    std::lock_guard<std::mutex> lock(sync_->mutex);
    return num_emitters_waiting_ > 0 || dropping_;
  }
  // Whether a window has ended among the events that may leave, since the last call.
  bool take_window_ended() {
    std::lock_guard<std::mutex> lock(sync_->mutex);
    window_told_ = window_told_ || window_ended_;
    return std::exchange(window_ended_, false);
  }
  // What was drained is committed, so the writer has to know of the next window's end: it plans a commit then. Until then further ends
  // tell it nothing.
  void committed() {
    std::lock_guard<std::mutex> lock(sync_->mutex);
    window_told_ = false;
    if (window_ended_) wake_writer();
  }
  // Handed-on events whose digests are on their way.
  size_t num_on_the_way() const {
    std::lock_guard<std::mutex> lock(sync_->mutex);
    return ready_.size() - num_leaving_;
  }
  int64_t held_bytes() const {
    std::lock_guard<std::mutex> lock(sync_->mutex);
    return held_bytes_;
  }

  // With the GIL: fill the cells of Python promises that have been kept. Returns how many are still outstanding. Never throws: what
  // fails is lost, and told to `failed`.
  size_t look_at_promises();
  // With the GIL: say that somebody waits for the promise of a cell (null: the newest), and give it a moment; false if there is none.
  bool wait_for_promise(const Cell* cell, std::chrono::duration<double> pause);
  // With the GIL: nobody waits for them any more.
  void forget_promises();
  void promise(std::vector<Promised> made) {
    std::lock_guard<std::mutex> lock(sync_->mutex);
    for (Promised& one : made) promised_.push_back(std::move(one));
    num_promised_.store(promised_.size());
  }
  size_t num_promised() const { return num_promised_.load(std::memory_order_relaxed); }
  // Called with the GIL: `collect` now and then, has what arrived delivered to promises; `failed` with an exception of ours and the event
  // that it concerns, None for all.
  std::shared_ptr<Held> collect, failed;
  std::shared_ptr<Drain> drain;  // the writer's scratch, see drain.h

  // Wait for no device any more: digests that are not there are lost.
  void give_up() {
    std::lock_guard<std::mutex> lock(sync_->mutex);
    for (size_t at = num_leaving_; at < ready_.size(); ++at) {
      for (SlotRow& slot : ready_[at]->slots) {
        if (slot.content.cell) slot.content.cell->lose();
        if (slot.content.unless) slot.content.unless->lose();
      }
    }
    advance();
  }

  // Nobody drains any more: let nothing in, free everybody who waits.
  void shut() {
    std::lock_guard<std::mutex> lock(sync_->mutex);
    shut_ = true;
    sync_->room.notify_all();
    wake_writer();
  }

  // After a fork, in the child: do nothing, and own no lock that a vanished thread may hold.
  void abandon_in_child() {
    dead_.store(true);
    (void)sync_.release();  // never unlocked: left alone
    sync_ = std::make_unique<Sync>();
    shut_ = true;
    attached_ = false;
  }

  // Slots whose digests never came, as they are found: (seq, whether training state is concerned). Called by `drain`.
  void count_loss(uint64_t seq, bool touches_state) {
    std::lock_guard<std::mutex> lock(sync_->mutex);
    lost_slots_.emplace_back(seq, touches_state);
  }
  // Those found since the last call, also among events that have not left yet.
  std::vector<std::pair<uint64_t, bool>> take_lost_slots() {
    std::lock_guard<std::mutex> lock(sync_->mutex);
    for (const EntryRef& entry : ready_) {
      for (const SlotRow& slot : entry->slots) {
        if (slot.content.cell && slot.content.cell->claim_loss()) {
          lost_slots_.emplace_back(slot.content.cell->seq, slot.content.cell->touches_state);
        }
      }
    }
    return std::exchange(lost_slots_, {});
  }

  // Writes that no schema declares, found by comparing what a device delivered: among events that have left, and that may leave.
  void count_undeclared_write() { num_undeclared_.fetch_add(1, std::memory_order_relaxed); }
  uint64_t num_undeclared_writes() const {
    std::lock_guard<std::mutex> lock(sync_->mutex);
    uint64_t count = num_undeclared_.load();
    for (size_t at = 0; at < num_leaving_; ++at) {
      for (const SlotRow& slot : ready_[at]->slots) count += slot.content.unless && slot.content.present();
    }
    return count;
  }

  // One look for what devices have delivered, after a pause if some is still missing; how many events still wait. For the end of a
  // capture, without the GIL.
  size_t look_for_digests() {
    std::unique_lock<std::mutex> lock(sync_->mutex);
    poll_unlocked(lock);
    advance();
    if (num_leaving_ < ready_.size()) {
      sync_->room.wait_for(lock, DEVICE_POLL);
      poll_unlocked(lock);
      advance();
    }
    return ready_.size() - num_leaving_;
  }

  static void bind(pybind11::module_& module);

 private:
  struct Sync {
    std::mutex mutex;
    std::condition_variable work;  // the writer waits
    std::condition_variable room;  // emitters wait
  };

  static uint32_t bytes_of(const EventRow& event, const SlotRows& slots) {
    return static_cast<uint32_t>(sizeof(Entry) + event.args_text.capacity() + slots.capacity() * sizeof(SlotRow));
  }

  void complete(const EntryRef& entry, EventRow&& event, SlotRows&& slots, Loss loss, std::string error) {
    if (dead_.load(std::memory_order_relaxed)) return;
    std::function<void()> unblock, no_longer;  // let go of after the lock: they may hold Python objects
    std::shared_ptr<Held> gathered;
    std::shared_ptr<Lane> lane;  // of no use any more, and its count is this thread's to change, not the writer's
    {
      std::unique_lock<std::mutex> lock(sync_->mutex);
      if (finished_) {
        num_late_.fetch_add(1);
        return;
      }
      if (entry->closed) return;
      if (loss == Loss::none && !has_room(lock, bytes_of(event, slots))) {
        loss = shut_ ? Loss::writer_closed : Loss::buffer_full;
      }
      if (finished_ || entry->closed) return;  // `finish` completed it while we waited for room
      gathered.swap(entry->gathered);
      lane.swap(entry->lane);
      entry->unblock.swap(no_longer);
      put(entry, std::move(event), std::move(slots), loss, std::move(error));
      hand_on();
      if (waiting_.size() > MAX_WAITING_EVENTS && waiting_.front()->unblock) unblock = std::exchange(waiting_.front()->unblock, {});
    }
    if (unblock) unblock();
  }

  void put(const EntryRef& entry, EventRow&& event, SlotRows&& slots, Loss loss, std::string error) {
    entry->loss = loss;
    entry->error = std::move(error);
    entry->closed = true;
    if (loss == Loss::none) {
      event.seq = entry->seq;
      for (const SlotRow& slot : slots) entry->has_cells = entry->has_cells || slot.content.cell || slot.content.unless;
      entry->event = std::move(event);
      entry->slots = std::move(slots);
      entry->num_bytes = bytes_of(entry->event, entry->slots);
    } else {
      entry->num_bytes = sizeof(Entry);
    }
    held_bytes_ += entry->num_bytes;
  }

  // Whether an event may be let in; waits for room where that can help.
  bool has_room(std::unique_lock<std::mutex>& lock, int64_t num_bytes) {
    if (shut_) return false;
    if (!wait_when_full_) {
      const int64_t limit = dropping_ ? budget_bytes_ / 2 : budget_bytes_;
      dropping_ = held_bytes_ > 0 && held_bytes_ + num_bytes > limit;
      if (dropping_) wake_writer();
      return !dropping_;
    }
    if (over(num_bytes, budget_bytes_) && attached_ && can_shrink()) {
      std::optional<pybind11::gil_scoped_release> released;
      if (Py_IsInitialized() != 0 && PyGILState_Check() != 0) {
        lock.unlock();  // never ask for, or let go of, the GIL under our lock
        released.emplace();
        lock.lock();
      }
      ++num_emitters_waiting_;
      while (!shut_ && !finished_ && over(num_bytes, budget_bytes_) && can_shrink()) {
        wake_writer();
        sync_->room.wait(lock);
      }
      --num_emitters_waiting_;
      if (released) {
        lock.unlock();
        released.reset();
        lock.lock();
      }
    }
    return !shut_ && !over(num_bytes, 2 * budget_bytes_);
  }

  bool over(int64_t num_bytes, int64_t limit) const { return held_bytes_ > 0 && held_bytes_ + num_bytes > limit; }
  // Whether the writer can make room by itself: not if all that is held waits for an operator, or a device, that may wait for us.
  bool can_shrink() const { return num_leaving_ > 0 || taken_bytes_ > 0; }

  // The cell that a promise fills; null if its event was lost. Without the lock: the slots of a complete event stay where they are.
  static CellRef cell_of(const Promised& one) {
    if (one.cell) return one.cell;
    return one.entry && one.slot < one.entry->slots.size() ? one.entry->slots[one.slot].content.cell : CellRef{};
  }

  static CellRef ready_cell(const Cell& like) {
    auto cell = c10::make_intrusive<Cell>(like.seq, like.digests().nbytes, false);
    cell->keep({}, 0);
    return cell;
  }

  void hand_on() {
    while (!waiting_.empty() && waiting_.front()->closed) {
      ready_.push_back(std::move(waiting_.front()));
      waiting_.pop_front();
    }
    oldest_open_.store(waiting_.empty() ? next_seq_.load() : waiting_.front()->seq, std::memory_order_relaxed);
    advance();
    if (resting_ && num_leaving_ < ready_.size()) sync_->work.notify_all();  // it has a device to look after now
  }

  // Count the events at the head of `ready_` that may leave.
  void advance() {
    while (num_leaving_ < ready_.size()) {
      const Entry& entry = *ready_[num_leaving_];
      if (entry.has_cells) {
        for (const SlotRow& slot : entry.slots) {
          if (!slot.content.ready()) return;
        }
      }
      ++num_leaving_;
      if (entry.loss == Loss::none) {
        if (window_ && *window_ != entry.event.window) {
          window_ended_ = true;
          if (!window_told_) wake_writer();
        }
        window_ = entry.event.window;
      }
      if (num_leaving_ >= CHUNK_EVENTS) wake_writer();
    }
  }

  void wake_writer() {
    if (wake_) return;
    wake_ = true;
    sync_->work.notify_all();
  }

  void poll_unlocked(std::unique_lock<std::mutex>& lock) {
    if (!poll_) return;
    lock.unlock();
    poll_();
    lock.lock();
  }

  const std::shared_ptr<Texts> texts_;
  const int64_t budget_bytes_;
  const bool wait_when_full_;
  std::unique_ptr<Sync> sync_;
  std::function<void()> poll_;
  std::deque<EntryRef> waiting_;  // begun, in order
  std::deque<EntryRef> ready_;    // complete, in order
  size_t num_leaving_ = 0;        // the first of `ready_` whose digests are there
  std::atomic<uint64_t> next_seq_{0}, oldest_open_{0}, num_late_{0};
  int64_t held_bytes_ = 0;   // complete, or taken and not yet released
  int64_t taken_bytes_ = 0;  // of these, taken
  int64_t num_emitters_waiting_ = 0;
  std::optional<uint32_t> window_;
  bool wake_ = false, resting_ = false, dropping_ = false, window_ended_ = false, window_told_ = false, finished_ = false, attached_ = false, shut_ = false;
  std::atomic<bool> dead_{false};
  std::atomic<uint64_t> num_undeclared_{0};
  std::vector<Promised> promised_;
  std::atomic<size_t> num_promised_{0};
  std::vector<std::pair<uint64_t, bool>> lost_slots_;
};

}  // namespace opguard

#include "outbox_python.h"
