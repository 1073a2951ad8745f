// One thread of the program, as the engine sees it: its role, its open modules, its autograd bookkeeping. Mirrors lanes.py.
//
// Two ways lead from a thread to a lane, as in the dispatch engine:
// - `Lanes::current()`: the lane that this very thread was given (a Python thread of the program);
// - `carried_lane()`: the lane whose operators this thread runs, which on an autograd thread is that of the thread that called
//   backward. It travels with the dispatch keys in at::ThreadLocalState, as a mode's object does, so both are there or neither.
// Python writes under the GIL; operators read without it on any thread: what they read is atomic or behind a lock.
#pragma once

#include <c10/util/Exception.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <pybind11/pybind11.h>

#include <array>
#include <atomic>
#include <cctype>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

namespace opguard {

inline constexpr size_t kNodeMemory = 1 << 18;  // forward events remembered by autograd sequence number

// A text and, once it has been asked for, its position in the interned texts of its column.
struct Word {
  explicit Word(std::string value) : text(std::move(value)) {}
  const std::string text;
  std::atomic<int32_t> code{-1};

  // Position in `texts`, which has `int32_t of(std::string_view)`; always called with the same texts.
  template <class Texts>
  int32_t in(Texts& texts) {
    int32_t known = code.load(std::memory_order_relaxed);
    if (known < 0) code.store(known = texts.of(text), std::memory_order_relaxed);
    return known;
  }
};

// Words of one session, each once; they stay where they are until it ends.
class Words {
 public:
  Word* of(std::string_view text);

 private:
  std::mutex lock_;
  std::unordered_map<std::string, std::unique_ptr<Word>> known_;
};

// The event that made an autograd node.
struct Maker {
  int64_t seq;
  const std::string* operator_;  // schema name ("aten::add"), owned by its plan or by `Words`
};

// Event by sequence number of the node it made, the oldest half forgotten when there are too many. Numbers grow by one a node, so those
// of one step lie beside one another: a table of all would be cold memory at every look.
class ForwardOf {
 public:
  std::optional<Maker> get(int64_t node) const;
  void link(int64_t node, int64_t seq, const std::string& qualified);
  size_t size() const;

 private:
  static constexpr int64_t kRun = 512;
  // Of `kRun` numbers from a multiple of it on; `operator_` is null where there is none.
  struct Run {
    std::array<Maker, kRun> makers{};
    size_t size = 0;
  };

  Run* run_of(int64_t node) const {
    const int64_t wanted = node >> 9;
    if (last_ != nullptr && last_index_ == wanted) return last_;
    const auto found = runs_.find(wanted);
    if (found == runs_.end()) return nullptr;
    last_index_ = wanted;
    return last_ = found->second.get();
  }
  void forget_half();

  mutable std::mutex lock_;
  std::unordered_map<int64_t, std::unique_ptr<Run>> runs_;
  std::deque<int64_t> order_;  // of first insertion
  size_t size_ = 0;
  mutable int64_t last_index_ = 0;
  mutable Run* last_ = nullptr;
};

// For each open call of the autograd engine, whether a graph of the backward is asked for.
class CreateGraph {
 public:
  void append(bool asked);
  bool pop();
  size_t size() const { return open_.size(); }
  bool at(size_t index) const { return open_.at(index); }
  bool last() const { return last_.load(std::memory_order_relaxed); }  // false if none is open

 private:
  std::vector<bool> open_;
  std::atomic<bool> last_{false};
};

// Rows of a `Stack`: where something was called; -1 for none.
struct CallPlace {
  int64_t stack = -1, user_frame = -1, library_frame = -1;
};

// Where a thread called the autograd engine: one entry for each call that has not come back, innermost last.
//
// The engine's own threads run operators without a Python frame, while the thread that called waits; several calls may be open then, of
// which the graph task says whose operator it is. A call that another thread made is taken for the innermost of ours.
class Backwards {
 public:
  // The engine is called, from inside graph task `task` (-1: from none).
  void begin(int64_t task, CallPlace place);
  // The innermost call came back.
  void end();
  // Where the engine was called for a graph task; null if no call is open. Cost: some 20 ns.
  std::optional<CallPlace> place(int64_t task) const;

 private:
  mutable std::mutex lock_;
  std::vector<std::pair<int64_t, CallPlace>> open_;  // graph task, -1 while not known
};

class Lane : public std::enable_shared_from_this<Lane> {
 public:
  Lane(std::string_view role, std::shared_ptr<Words> words);
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  // "main", or "Thread:<target qualname>".
  Word& role() const { return *role_.load(std::memory_order_relaxed); }
  // Number of the thread, in order of first event; -1 before (then ask `Lanes::number`).
  int32_t index() const { return index_.load(std::memory_order_relaxed); }
  // Path of the innermost open module.
  Word& path() const { return *path_.load(std::memory_order_relaxed); }
  // Whether gradients were on when the outermost open module was called.
  bool root_grad() const { return root_grad_.load(std::memory_order_relaxed); }
  bool graph_is_created() const { return create_graph_.last(); }
  // Operators pass through unobserved.
  bool muted() const { return muted_.load(std::memory_order_relaxed); }
  void mute(bool on) { muted_.store(on); }
  // What observes its thread has stepped aside for a mode of the program's, see lanes.py.
  bool away() const { return away_.load(std::memory_order_relaxed); }

  // Autograd sequence counter when this thread last ran an operator.
  std::atomic<int64_t> last_node{0};
  // Events begun on this thread.
  std::atomic<int64_t> num_events{0};
  ForwardOf forward_of;
  Backwards backwards;

  // Top-level backward calls this thread has completed in a window.
  int64_t microbatch(int64_t window) const {
    return counted_in_.load(std::memory_order_relaxed) == window ? microbatches_.load(std::memory_order_relaxed) : 0;
  }
  void count_microbatch(int64_t window) {
    microbatches_.store(microbatch(window) + 1);
    counted_in_.store(window);
  }
  // Remember which event made an autograd node. `qualified` must outlive the lane (a plan's own name).
  void link(int64_t node, int64_t seq, const std::string& qualified) { forward_of.link(node, seq, qualified); }

  // Put the mode back on the stack if it stepped aside. Needs the GIL.
  void come_back();

 private:
  friend class Lanes;
  friend class ModuleCalls;
  friend void bind_lanes(pybind11::module_& module);

  std::shared_ptr<Words> words_;
  std::atomic<Word*> role_, path_;
  std::atomic<int32_t> index_{-1};
  std::atomic<bool> root_grad_{false}, muted_{false}, aside_{false}, away_{false};
  std::atomic<int64_t> microbatches_{0}, counted_in_{0};
  CreateGraph create_graph_;
  uint64_t session_ = 0;  // which Lanes gave it
  pybind11::object modules_, mode_;  // list of open module calls, outermost first; what observes this thread
};

// All threads observed.
class Lanes {
 public:
  Lanes();

  // The calling thread's own lane, null if it is not observed.
  std::shared_ptr<Lane> current() const;
  std::shared_ptr<Lane> enter(std::string_view role);
  void leave();
  // Index of a lane, given out at its first event.
  int32_t number(Lane& lane);
  std::vector<std::shared_ptr<Lane>> all() const;

  // Event of the forward operator that made an autograd node: by its number in `lane`, else in any lane whose operator fits the
  // node's name (numbers are counted per thread).
  std::optional<int64_t> forward_seq(const Lane& lane, int64_t number, std::string_view node_name) const;

  // After a fork, in the child: own no lock that a vanished thread may hold.
  void new_lock();

 private:
  const uint64_t session_;
  std::shared_ptr<Words> words_;
  std::unique_ptr<std::mutex> lock_;
  std::vector<std::shared_ptr<Lane>> all_;
};

// Carry a lane in the calling thread's at::ThreadLocalState, from now on and into backward calls it starts.
void carry_lane(std::shared_ptr<Lane> lane);
// No longer; does nothing if the thread carries none.
void put_down_lane();
// The lane whose operators the calling thread runs, null if none. Cost: a few ns, no lock, no GIL.
Lane* carried_lane();

// Adds Lane, Lanes, and carry_lane / put_down_lane / carried_lane (lanes_python.h).
void bind_lanes(pybind11::module_& module);

// Implementation.

inline Word* Words::of(std::string_view text) {
  std::lock_guard<std::mutex> held(lock_);
  auto& known = known_[std::string(text)];
  if (!known) known = std::make_unique<Word>(std::string(text));
  return known.get();
}

inline std::optional<Maker> ForwardOf::get(int64_t node) const {
  std::lock_guard<std::mutex> held(lock_);
  const Run* const run = run_of(node);
  if (run == nullptr || run->makers[node & (kRun - 1)].operator_ == nullptr) return std::nullopt;
  return run->makers[node & (kRun - 1)];
}

inline size_t ForwardOf::size() const {
  std::lock_guard<std::mutex> held(lock_);
  return size_;
}

inline void ForwardOf::forget_half() {
  last_ = nullptr;
  for (size_t left = kNodeMemory / 2; left > 0;) {
    Run& oldest = *runs_[order_.front()];
    if (oldest.size <= left) {
      left -= oldest.size;
      size_ -= oldest.size;
      runs_.erase(order_.front());
      order_.pop_front();
      continue;
    }
    for (Maker& maker : oldest.makers) {
      if (left == 0) break;
      if (maker.operator_ == nullptr) continue;
      maker.operator_ = nullptr;
      --oldest.size;
      --size_;
      --left;
    }
  }
}

inline void ForwardOf::link(int64_t node, int64_t seq, const std::string& qualified) {
  std::lock_guard<std::mutex> held(lock_);
  if (size_ >= kNodeMemory) forget_half();
  Run* run = run_of(node);
  if (run == nullptr) {
    last_index_ = node >> 9;
    last_ = run = (runs_[last_index_] = std::make_unique<Run>()).get();
    order_.push_back(last_index_);
  }
  Maker& maker = run->makers[node & (kRun - 1)];
  if (maker.operator_ == nullptr) {
    ++run->size;
    ++size_;
  }
  maker = {seq, &qualified};
}

inline void CreateGraph::append(bool asked) {
  open_.push_back(asked);
  last_.store(asked);
}

inline bool CreateGraph::pop() {
  if (open_.empty()) throw pybind11::index_error("pop from empty list");
  const bool asked = open_.back();
  open_.pop_back();
  last_.store(!open_.empty() && open_.back());
  return asked;
}

inline void Backwards::begin(int64_t task, CallPlace place) {
  std::lock_guard<std::mutex> held(lock_);
  if (!open_.empty() && open_.back().first < 0) open_.back().first = task;
  open_.emplace_back(-1, place);
}

inline void Backwards::end() {
  std::lock_guard<std::mutex> held(lock_);
  if (open_.empty()) throw pybind11::index_error("pop from empty list");
  open_.pop_back();
}

inline std::optional<CallPlace> Backwards::place(int64_t task) const {
  std::lock_guard<std::mutex> held(lock_);
  for (auto call = open_.rbegin(); call != open_.rend(); ++call) {
    if (call->first == task) return call->second;
  }
  if (open_.empty()) return std::nullopt;
  return open_.back().second;
}

namespace detail {

// Python objects whose owner ended on a thread without the GIL: let go by the next thread that has it.
class Orphans {
 public:
  static Orphans& all() {
    static Orphans* const orphans = new Orphans;  // outlives every thread
    return *orphans;
  }
  void add(pybind11::object& object) {
    PyObject* const raw = object.release().ptr();
    if (raw == nullptr || !Py_IsInitialized()) return;
    if (PyGILState_Check()) {
      Py_DECREF(raw);
      return;
    }
    std::lock_guard<std::mutex> held(lock_);
    waiting_.push_back(raw);
  }
  void let_go() {
    std::vector<PyObject*> ready;
    {
      std::lock_guard<std::mutex> held(lock_);
      ready.swap(waiting_);
    }
    for (PyObject* const object : ready) Py_DECREF(object);
  }

 private:
  std::mutex lock_;
  std::vector<PyObject*> waiting_;
};

// A kind of our own, which torch neither uses nor looks at: a number, or from torch 2.13 on the address of a name.
template <class Kind>
Kind own_kind() {
  if constexpr (std::is_enum_v<Kind>) {
    return static_cast<Kind>(0x6f);
  } else {
    static constexpr std::string_view name = "opguard.lane";
    return Kind(&name);
  }
}
inline const auto kLaneInfo = own_kind<c10::DebugInfoKind>();

struct CarriedLane : c10::DebugInfoBase {
  explicit CarriedLane(std::shared_ptr<Lane> carried) : lane(std::move(carried)) {}
  const std::shared_ptr<Lane> lane;
};

inline std::shared_ptr<Lane>& own_lane() {
  thread_local std::shared_ptr<Lane> lane;
  return lane;
}

inline uint64_t next_session() {
  static std::atomic<uint64_t> sessions{0};
  return sessions.fetch_add(1) + 1;
}

using Info = std::pair<c10::DebugInfoKind, std::shared_ptr<c10::DebugInfoBase>>;

// Take off what stands above (or, without one, all but) an info of ours, topmost first; the kinds torch has are few, and only the
// top one lets itself be popped.
inline std::vector<Info> pop_infos(bool down_to_ours) {
  using Kind = c10::DebugInfoKind;
  const Kind kinds[] = {kLaneInfo,           Kind::PRODUCER_INFO,     Kind::MOBILE_RUNTIME_INFO, Kind::PROFILER_STATE,
                        Kind::INFERENCE_CONTEXT, Kind::PARAM_COMMS_INFO, Kind::TEST_INFO,           Kind::TEST_INFO_2};
  std::vector<Info> popped;
  while (c10::ThreadLocalDebugInfo::current() && !(down_to_ours && !c10::ThreadLocalDebugInfo::get(kLaneInfo))) {
    const size_t before = popped.size();
    for (const Kind kind : kinds) {
      if (c10::ThreadLocalDebugInfo::get(kind) == nullptr) continue;
      try {
        popped.emplace_back(kind, c10::ThreadLocalDebugInfo::_pop(kind));
        break;
      } catch (const c10::Error&) {
        continue;  // not the top one
      }
    }
    if (popped.size() == before) break;  // of a kind we do not know: leave it
    if (down_to_ours && popped.back().first == kLaneInfo) break;
  }
  return popped;
}

inline void push_infos(std::vector<Info> infos) {
  for (auto info = infos.rbegin(); info != infos.rend(); ++info) c10::ThreadLocalDebugInfo::_push(info->first, info->second);
}

}  // namespace detail

inline Lane::Lane(std::string_view role, std::shared_ptr<Words> words)
    : words_(std::move(words)), role_(words_->of(role)), path_(words_->of("")), modules_(pybind11::list()), mode_(pybind11::none()) {}

inline Lane::~Lane() {
  detail::Orphans::all().add(modules_);
  detail::Orphans::all().add(mode_);
}

inline void Lane::come_back() {
  if (!aside_.load()) return;
  aside_.store(false);
  mode_.attr("push")();
}

inline Lanes::Lanes() : session_(detail::next_session()), words_(std::make_shared<Words>()), lock_(std::make_unique<std::mutex>()) {}

inline std::shared_ptr<Lane> Lanes::current() const {
  const auto& lane = detail::own_lane();
  return lane && lane->session_ == session_ ? lane : nullptr;
}

inline std::shared_ptr<Lane> Lanes::enter(std::string_view role) {
  detail::Orphans::all().let_go();
  auto lane = std::make_shared<Lane>(role, words_);
  lane->session_ = session_;
  detail::own_lane() = lane;
  return lane;
}

inline void Lanes::leave() {
  if (current()) detail::own_lane().reset();
}

inline int32_t Lanes::number(Lane& lane) {
  const int32_t given = lane.index();
  if (given >= 0) return given;
  std::lock_guard<std::mutex> held(*lock_);
  if (lane.index() < 0) {
    lane.index_.store(static_cast<int32_t>(all_.size()));
    all_.push_back(lane.shared_from_this());
  }
  return lane.index();
}

inline std::vector<std::shared_ptr<Lane>> Lanes::all() const {
  std::lock_guard<std::mutex> held(*lock_);
  return all_;
}

inline void Lanes::new_lock() {
  (void)lock_.release();  // destroying a held lock is not allowed
  lock_ = std::make_unique<std::mutex>();
}

// Whether an operator can have made a node: "aten::_log_softmax" and "LogSoftmaxBackward0".
inline bool fits(std::string_view qualified, std::string_view node_name) {
  const auto plain = [](std::string_view text, bool keep_underscores) {
    std::string made;
    for (const char letter : text) {
      if (letter != '_' || keep_underscores) made += static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
    }
    return made;
  };
  const auto colon = qualified.rfind("::");
  const std::string base = plain(colon == std::string_view::npos ? qualified : qualified.substr(colon + 2), false);
  return !base.empty() && plain(node_name, true).find(base) != std::string::npos;
}

inline std::optional<int64_t> Lanes::forward_seq(const Lane& lane, int64_t number, std::string_view node_name) const {
  if (const auto maker = lane.forward_of.get(number)) return maker->seq;
  for (const auto& other : all()) {
    const auto maker = other->forward_of.get(number);
    if (maker && fits(*maker->operator_, node_name)) return maker->seq;
  }
  return std::nullopt;
}

inline void put_down_lane() {
  if (!c10::ThreadLocalDebugInfo::get(detail::kLaneInfo)) return;
  auto above = detail::pop_infos(true);
  if (!above.empty() && above.back().first == detail::kLaneInfo) above.pop_back();
  detail::push_infos(std::move(above));
}

inline void carry_lane(std::shared_ptr<Lane> lane) {
  if (carried_lane() == lane.get()) return;
  put_down_lane();
  // Below what is there: a profiler that has begun expects its own info on top when it ends.
  auto above = detail::pop_infos(false);
  c10::ThreadLocalDebugInfo::_push(detail::kLaneInfo, std::make_shared<detail::CarriedLane>(std::move(lane)));
  detail::push_infos(std::move(above));
}

inline Lane* carried_lane() {
  auto* const info = c10::ThreadLocalDebugInfo::get(detail::kLaneInfo);
  return info == nullptr ? nullptr : static_cast<detail::CarriedLane*>(info)->lane.get();
}

}  // namespace opguard
