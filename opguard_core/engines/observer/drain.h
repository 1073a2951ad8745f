// Takes events out of the outbox as columns: two record batches in Arrow's C data interface, built without the GIL.
//
// Each batch has dictionaries of its own, of the texts it uses in order of first use, as pyarrow makes them of rows; a segment that
// was written from columns is the one that rows would have given.
// Source: https://arrow.apache.org/docs/format/CDataInterface.html (structures, ownership), ColumnarFormat (buffers, bitmaps).
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "outbox.h"

#ifndef ARROW_C_DATA_INTERFACE
#define ARROW_C_DATA_INTERFACE
extern "C" {
struct ArrowArray {
  int64_t length, null_count, offset, n_buffers, n_children;
  const void** buffers;
  struct ArrowArray** children;
  struct ArrowArray* dictionary;
  void (*release)(struct ArrowArray*);
  void* private_data;
};
}
#endif

namespace opguard {

// Texts of one column of one batch: codes of the session become positions in the batch's own dictionary.
class Dictionary {
 public:
  void begin() {
    ++stamp_;
    free_.clear();
    offsets_.assign(1, 0);
    data_.clear();
  }

  int32_t position(const Text& table, Code code) {
    const auto at = static_cast<size_t>(code);
    if (at >= seen_.size()) seen_.resize(at + 64);
    auto& [stamp, position] = seen_[at];
    if (stamp != stamp_) {
      stamp = stamp_;
      position = add(table.text(code));
    }
    return position;
  }

  // A text that travelled with its event.
  int32_t position(const std::string& text) {
    auto found = free_.find(text);
    if (found == free_.end()) found = free_.emplace(text, add(text)).first;
    return found->second;
  }

  std::vector<int32_t> take_offsets() { return std::move(offsets_); }
  std::string take_data() { return std::move(data_); }

 private:
  int32_t add(const std::string& text) {
    data_ += text;
    offsets_.push_back(static_cast<int32_t>(data_.size()));
    return static_cast<int32_t>(offsets_.size()) - 2;
  }

  uint32_t stamp_ = 0;
  std::vector<std::pair<uint32_t, int32_t>> seen_;  // by code: (stamp of the batch it was met in, position there)
  std::unordered_map<std::string, int32_t> free_;
  std::vector<int32_t> offsets_;
  std::string data_;
};

// One Arrow array that owns its buffers. Built first, exported once.
class Node {
 public:
  template <class T>
  static Node plain(std::vector<T> values) {
    Node node(static_cast<int64_t>(values.size()), 2);
    node.own(1, std::move(values));
    return node;
  }

  static Node bits(int64_t length, std::vector<uint8_t> values) {
    Node node(length, 2);
    node.own(1, std::move(values));
    return node;
  }

  static Node texts(std::vector<int32_t> positions, Dictionary& dictionary) {
    Node node = plain(std::move(positions));
    std::vector<int32_t> offsets = dictionary.take_offsets();
    Node values(static_cast<int64_t>(offsets.size()) - 1, 3);
    values.own(1, std::move(offsets));
    auto data = std::make_shared<std::string>(dictionary.take_data());
    values.buffers_[2] = data->data();
    values.owned_.push_back(std::move(data));
    node.dictionary_ = std::make_unique<Node>(std::move(values));
    return node;
  }

  // `valid`: one bit a row.
  void nullable(std::vector<uint8_t> valid, int64_t null_count) {
    if (null_count == 0) return;
    null_count_ = null_count;
    own(0, std::move(valid));
  }

  static Node record(int64_t length, std::vector<Node> columns) {
    Node node(length, 1);
    node.columns_ = std::move(columns);
    return node;
  }

  // Hand over to a consumer, who calls `release`; children may be moved out and released on their own.
  void into(ArrowArray* out) && {
    auto* state = new Exported{std::move(owned_), std::move(buffers_), {}, nullptr};
    for (Node& column : columns_) {
      state->children.push_back(new ArrowArray);
      std::move(column).into(state->children.back());
    }
    if (dictionary_) {
      state->dictionary = new ArrowArray;
      std::move(*dictionary_).into(state->dictionary);
    }
    *out = {length_, null_count_, 0, static_cast<int64_t>(state->buffers.size()), static_cast<int64_t>(state->children.size()),
            state->buffers.data(), state->children.data(), state->dictionary, &Node::release, state};
  }

  int64_t num_bytes() const {
    int64_t total = num_bytes_;
    for (const Node& column : columns_) total += column.num_bytes();
    return total + (dictionary_ ? dictionary_->num_bytes() : 0);
  }

 private:
  struct Exported {
    std::vector<std::shared_ptr<void>> owned;
    std::vector<const void*> buffers;
    std::vector<ArrowArray*> children;
    ArrowArray* dictionary;
  };

  Node(int64_t length, size_t num_buffers) : length_(length), buffers_(num_buffers, nullptr) {}

  template <class T>
  void own(size_t at, std::vector<T> values) {
    num_bytes_ += static_cast<int64_t>(values.size() * sizeof(T));
    auto kept = std::make_shared<std::vector<T>>(std::move(values));
    buffers_[at] = kept->data();
    owned_.push_back(std::move(kept));
  }

  static void release(ArrowArray* array) {
    auto* state = static_cast<Exported*>(array->private_data);
    for (ArrowArray* child : state->children) {
      if (child->release != nullptr) child->release(child);
      delete child;
    }
    if (state->dictionary != nullptr) {
      if (state->dictionary->release != nullptr) state->dictionary->release(state->dictionary);
      delete state->dictionary;
    }
    delete state;
    array->release = nullptr;
  }

  int64_t length_, null_count_ = 0, num_bytes_ = 0;
  std::vector<std::shared_ptr<void>> owned_;
  std::vector<const void*> buffers_;
  std::vector<Node> columns_;
  std::unique_ptr<Node> dictionary_;
};

// Builds columns out of rows given as pointers; one object per writer, which is one thread at a time.
class Drain {
 public:
  // One run of events that left, with what became of those that have no row.
  struct Taken {
    std::unique_ptr<Node> events, slots;  // null if there are none
    int64_t held_bytes = 0, column_bytes = 0;
    uint64_t first_seq = 0, last_seq = 0;  // of all that were taken
    struct Lost {
      uint64_t first, last;
      Loss loss;
      std::string error;
    };
    std::vector<Lost> lost;
    bool any = false;
  };

  Taken run(Outbox& outbox, size_t max_events) {
    Taken taken;
    std::vector<EntryRef> entries = outbox.take(max_events);
    taken.any = !entries.empty();
    std::vector<Entry*> kept;
    kept.reserve(entries.size());
    for (const EntryRef& entry : entries) {
      taken.held_bytes += entry->num_bytes;
      if (entry->loss == Loss::none) kept.push_back(entry.get());
      else note(taken.lost, *entry);
    }
    slots_.clear();
    for (Entry* entry : kept) settle(outbox, *entry);
    if (!entries.empty()) {
      taken.first_seq = entries.front()->seq;
      taken.last_seq = entries.back()->seq;
    }
    if (!kept.empty()) {
      taken.events = std::make_unique<Node>(events(outbox.texts(), kept));
      taken.column_bytes = taken.events->num_bytes();
    }
    if (!slots_.empty()) {
      taken.slots = std::make_unique<Node>(slots(outbox.texts()));
      taken.column_bytes += taken.slots->num_bytes();
    }
    return taken;
  }

 private:
  struct Slot {
    const Entry* entry;
    const SlotRow* row;
    Code status;
    Digests digests;
  };

  static void note(std::vector<Taken::Lost>& lost, const Entry& entry) {
    if (!lost.empty() && lost.back().last + 1 == entry.seq && lost.back().loss == entry.loss && lost.back().error == entry.error) {
      lost.back().last = entry.seq;
    } else {
      lost.push_back({entry.seq, entry.seq, entry.loss, entry.error});
    }
  }

  // Digests and the device's time are final now.
  void settle(Outbox& outbox, Entry& entry) {
    uint64_t latest_ns = 0;
    for (const SlotRow& row : entry.slots) {
      if (row.content.hides() && row.content.cell->claim_loss()) outbox.count_loss(row.content.cell->seq, row.content.cell->touches_state);
      if (!row.content.present()) continue;
      if (row.content.unless) outbox.count_undeclared_write();
      Slot slot{&entry, &row, row.status, {}};
      if (row.content.lost()) {
        slot.status = statuses::UNREADABLE;
        if (row.content.cell->claim_loss()) outbox.count_loss(row.content.cell->seq, row.content.cell->touches_state);
      } else {
        slot.digests = row.content.get();
        const bool own = row.direction != directions::IN && row.status == statuses::PROBED;
        if (row.content.cell && own) latest_ns = std::max(latest_ns, row.content.cell->t_device_ns());
      }
      slots_.push_back(slot);
    }
    if (entry.event.t_device_ns == NO_TIME && latest_ns != 0) entry.event.t_device_ns = static_cast<int64_t>(latest_ns);
  }

  template <class T, class Rows, class Get>
  static Node plain(const Rows& rows, Get get) {
    std::vector<T> values;
    values.reserve(rows.size());
    for (const auto& row : rows) values.push_back(static_cast<T>(get(row)));
    return Node::plain(std::move(values));
  }

  template <class T, class Rows, class Get, class IsNull>
  static Node nullable(const Rows& rows, Get get, IsNull is_null) {
    std::vector<uint8_t> valid((rows.size() + 7) / 8);
    std::vector<T> values;
    values.reserve(rows.size());
    int64_t num_nulls = 0;
    size_t at = 0;
    for (const auto& row : rows) {
      const bool null = is_null(row);
      num_nulls += null;
      values.push_back(null ? T{0} : static_cast<T>(get(row)));
      if (!null) valid[at / 8] = static_cast<uint8_t>(valid[at / 8] | (1U << (at % 8)));
      ++at;
    }
    Node node = Node::plain(std::move(values));
    node.nullable(std::move(valid), num_nulls);
    return node;
  }

  // Null where `get` gives `null`.
  template <class T, class Rows, class Get>
  static Node numbers(const Rows& rows, int64_t null, Get get) {
    return nullable<T>(rows, get, [&](const auto& row) { return get(row) == null; });
  }

  template <class Rows, class Get>
  static Node truths(const Rows& rows, Get get) {
    std::vector<uint8_t> values((rows.size() + 7) / 8);
    size_t at = 0;
    for (const auto& row : rows) {
      if (get(row)) values[at / 8] = static_cast<uint8_t>(values[at / 8] | (1U << (at % 8)));
      ++at;
    }
    return Node::bits(static_cast<int64_t>(rows.size()), std::move(values));
  }

  // `get` gives the code; NO_TEXT stands for "" (a text that nobody set).
  template <class Rows, class Get>
  Node texts(size_t column, Text& table, const Rows& rows, Get get) {
    Dictionary& dictionary = dictionaries_[column];
    dictionary.begin();
    std::vector<int32_t> positions;
    positions.reserve(rows.size());
    for (const auto& row : rows) {
      const Code code = get(row);
      positions.push_back(code == NO_TEXT ? dictionary.position(std::string()) : dictionary.position(table, code));
    }
    return Node::texts(std::move(positions), dictionary);
  }

  Node arguments(size_t column, Text& table, const std::vector<Entry*>& rows) {
    Dictionary& dictionary = dictionaries_[column];
    dictionary.begin();
    std::vector<int32_t> positions;
    positions.reserve(rows.size());
    for (const Entry* row : rows) {
      const EventRow& event = row->event;
      positions.push_back(event.args == NO_TEXT ? dictionary.position(event.args_text) : dictionary.position(table, event.args));
    }
    return Node::texts(std::move(positions), dictionary);
  }

#define OPGUARD_EVENT(field) [](const Entry* row) { return row->event.field; }
#define OPGUARD_SLOT(field) [](const Slot& slot) { return slot.row->field; }
  Node events(Texts& words, const std::vector<Entry*>& rows) {
    std::vector<Node> columns;
    columns.reserve(22);
    columns.push_back(plain<uint64_t>(rows, OPGUARD_EVENT(seq)));
    columns.push_back(texts(0, words.kind, rows, OPGUARD_EVENT(kind)));
    columns.push_back(texts(1, words.operator_, rows, OPGUARD_EVENT(operator_)));
    columns.push_back(plain<int64_t>(rows, OPGUARD_EVENT(t_host_ns)));
    columns.push_back(numbers<int64_t>(rows, NO_TIME, OPGUARD_EVENT(t_device_ns)));
    columns.push_back(numbers<int64_t>(rows, NO_TIME, OPGUARD_EVENT(stream)));
    columns.push_back(texts(2, words.thread, rows, OPGUARD_EVENT(thread)));
    columns.push_back(plain<uint32_t>(rows, OPGUARD_EVENT(thread_index)));
    columns.push_back(plain<uint64_t>(rows, OPGUARD_EVENT(collective_clock)));
    columns.push_back(plain<uint32_t>(rows, OPGUARD_EVENT(window)));
    columns.push_back(plain<uint32_t>(rows, OPGUARD_EVENT(microbatch)));
    columns.push_back(texts(3, words.phase, rows, OPGUARD_EVENT(phase)));
    columns.push_back(texts(4, words.module, rows, OPGUARD_EVENT(module)));
    columns.push_back(texts(5, words.node, rows, OPGUARD_EVENT(node)));
    columns.push_back(numbers<int64_t>(rows, NO_NUMBER, OPGUARD_EVENT(forward_seq)));
    columns.push_back(numbers<uint32_t>(rows, NO_NUMBER, OPGUARD_EVENT(stack)));
    columns.push_back(numbers<uint32_t>(rows, NO_NUMBER, OPGUARD_EVENT(user_frame)));
    columns.push_back(numbers<uint32_t>(rows, NO_NUMBER, OPGUARD_EVENT(library_frame)));
    columns.push_back(arguments(6, words.args, rows));
    columns.push_back(texts(7, words.rng_stream, rows, OPGUARD_EVENT(rng_stream)));
    columns.push_back(nullable<uint64_t>(rows, OPGUARD_EVENT(rng_before), [](const Entry* row) { return !row->event.has_rng; }));
    columns.push_back(truths(rows, OPGUARD_EVENT(grad_enabled)));
    return Node::record(static_cast<int64_t>(rows.size()), std::move(columns));
  }

  Node slots(Texts& words) {
    const std::vector<Slot>& rows = slots_;
    std::vector<Node> columns;
    columns.reserve(19);
    columns.push_back(plain<uint64_t>(rows, [](const Slot& slot) { return slot.entry->seq; }));
    columns.push_back(texts(8, words.slot, rows, OPGUARD_SLOT(slot)));
    columns.push_back(texts(9, words.direction, rows, OPGUARD_SLOT(direction)));
    columns.push_back(texts(10, words.status, rows, [](const Slot& slot) { return slot.status; }));
    columns.push_back(texts(11, words.dtype, rows, OPGUARD_SLOT(dtype)));
    columns.push_back(texts(12, words.shape, rows, OPGUARD_SLOT(shape)));
    columns.push_back(texts(13, words.strides, rows, OPGUARD_SLOT(strides)));
    columns.push_back(texts(14, words.device, rows, OPGUARD_SLOT(device)));
    columns.push_back(numbers<uint32_t>(rows, NO_NUMBER, OPGUARD_SLOT(storage)));
    columns.push_back(plain<uint64_t>(rows, OPGUARD_SLOT(extent_lo)));
    columns.push_back(plain<uint64_t>(rows, OPGUARD_SLOT(extent_hi)));
    columns.push_back(numbers<int64_t>(rows, NO_NUMBER, OPGUARD_SLOT(version)));
    columns.push_back(plain<uint64_t>(rows, OPGUARD_SLOT(nbytes)));
    columns.push_back(plain<uint64_t>(rows, [](const Slot& slot) { return slot.digests.mix64; }));
    columns.push_back(plain<uint64_t>(rows, [](const Slot& slot) { return slot.digests.value64; }));
    columns.push_back(plain<uint64_t>(rows, [](const Slot& slot) { return slot.digests.bag64; }));
    columns.push_back(plain<uint32_t>(rows, [](const Slot& slot) { return slot.digests.xor32; }));
    columns.push_back(truths(rows, [](const Slot& slot) { return slot.digests.trivial; }));
    columns.push_back(texts(15, words.name, rows, OPGUARD_SLOT(name)));
    return Node::record(static_cast<int64_t>(rows.size()), std::move(columns));
  }
#undef OPGUARD_EVENT
#undef OPGUARD_SLOT

  Dictionary dictionaries_[16];
  std::vector<Slot> slots_;
};

// `trace.batch.Drained`: (events, slots, held_bytes, column_bytes, (first_seq, last_seq), lost), or None if nothing may leave.
// `events` and `slots` are capsules named "arrow_array", or None.
inline pybind11::object drain_to_python(Outbox& outbox, size_t max_events) {
  namespace py = pybind11;
  const auto capsule = [](std::unique_ptr<Node>& node) -> py::object {
    if (!node) return py::none();
    auto array = std::make_unique<ArrowArray>();
    std::move(*node).into(array.get());
    return py::capsule(array.release(), "arrow_array", [](PyObject* self) {
      auto* held = static_cast<ArrowArray*>(PyCapsule_GetPointer(self, "arrow_array"));
      if (held->release != nullptr) held->release(held);
      delete held;
    });
  };
  if (!outbox.drain) outbox.drain = std::make_shared<Drain>();
  Drain::Taken taken;
  {
    py::gil_scoped_release released;
    taken = outbox.drain->run(outbox, max_events);
  }
  if (!taken.any) return py::none();
  py::list lost;
  for (const auto& one : taken.lost) {
    lost.append(py::make_tuple(one.first, one.last, text_of(one.loss), py::reinterpret_steal<py::object>(PyUnicode_DecodeUTF8(
                                                                           one.error.data(), static_cast<Py_ssize_t>(one.error.size()), "replace"))));
  }
  return py::make_tuple(capsule(taken.events), capsule(taken.slots), taken.held_bytes, taken.column_bytes,
                        py::make_tuple(taken.first_seq, taken.last_seq), std::move(lost));
}

}  // namespace opguard
