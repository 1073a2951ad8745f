// The texts of a trace's dictionary columns, as numbers. Where Python code holds a text, ours holds its `Code`.
//
// One table per column; a code is the position of a text in its column's table, dense, and never changes. The words of the closed
// vocabularies (ids.py) come first, in the order of their enumerations, so that they are constants here.
#pragma once

#include <pybind11/pybind11.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <initializer_list>
#include <mutex>
#include <shared_mutex>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace opguard {

using Code = int32_t;
inline constexpr Code NO_TEXT = -1;
inline constexpr Code EMPTY_TEXT = 0;  // "" in the columns module, node, args, rng_stream, shape, strides and name

namespace kinds {  // ids.Kind
inline constexpr Code OPERATOR = 0, COLLECTIVE = 1, READ = 2, STATE = 3, MARKER = 4, GAP = 5;
}
namespace phases {  // ids.Phase
inline constexpr Code DATA = 0, FORWARD = 1, RECOMPUTE = 2, BACKWARD = 3, COLLECTIVE = 4, OPTIMIZER = 5, STATE = 6, EVAL = 7;
}
namespace directions {  // ids.Direction
inline constexpr Code IN = 0, OUT = 1, MUT = 2;
}
namespace statuses {  // ids.Status
inline constexpr Code PROBED = 0, CARRIED = 1, UNINITIALISED = 2, METADATA = 3, UNREADABLE = 4;
}
inline constexpr Code MAIN_THREAD = 0;  // column thread
inline constexpr Code CPU_DEVICE = 0;   // column device

// The texts of one column. Any thread, with or without the GIL.
// Cost: about 40 ns for a known text of 20 characters; keep the code of what you use often.
class Text {
 public:
  Text(std::initializer_list<const char*> words) {
    for (const char* word : words) code(word);
  }
  Text(const Text&) = delete;
  Text& operator=(const Text&) = delete;

  // Code of a text, NO_TEXT if it has none yet.
  Code known(std::string_view text) const {
    std::shared_lock<std::shared_mutex> lock(mutex_);
    auto found = codes_.find(text);
    return found == codes_.end() ? NO_TEXT : found->second;
  }

  // Code of a text, given out now if it is new. UTF-8.
  Code code(std::string_view text) {
    const Code before = known(text);
    if (before != NO_TEXT) return before;
    std::unique_lock<std::shared_mutex> lock(mutex_);
    auto found = codes_.find(text);
    if (found != codes_.end()) return found->second;
    const Code made = static_cast<Code>(texts_.size());
    texts_.emplace_back(text);  // a deque: what was handed out stays where it is
    codes_.emplace(texts_.back(), made);
    return made;
  }

  Code of(std::string_view text) { return code(text); }

  // The text of a code that `code` gave out; lives as long as the table.
  const std::string& text(Code code) const {
    std::shared_lock<std::shared_mutex> lock(mutex_);
    return texts_.at(static_cast<size_t>(code));
  }

  Code size() const {
    std::shared_lock<std::shared_mutex> lock(mutex_);
    return static_cast<Code>(texts_.size());
  }

 private:
  mutable std::shared_mutex mutex_;
  std::deque<std::string> texts_;
  std::unordered_map<std::string_view, Code> codes_;
};

// All dictionary columns of EVENTS and SLOTS (trace/schema.py); one object per session, shared by all its parts.
struct Texts {
  // EVENTS
  Text kind{"operator", "collective", "read", "state", "marker", "gap"};
  Text operator_{};
  Text thread{"main"};
  Text phase{"data", "forward", "recompute", "backward", "collective", "optimizer", "state", "eval"};
  Text module{""};
  Text node{""};
  Text args{""};
  Text rng_stream{""};
  // SLOTS
  Text slot{};
  Text direction{"in", "out", "mut"};
  Text status{"probed", "carried", "uninitialised", "metadata", "unreadable"};
  Text dtype{};
  Text shape{""};
  Text strides{""};
  Text device{"cpu"};
  Text name{""};

  // A column by its name in the schema. Throws std::out_of_range.
  Text& of(std::string_view column) {
    const std::pair<std::string_view, Text*> columns[] = {
        {"kind", &kind},     {"operator", &operator_}, {"thread", &thread},       {"phase", &phase},   {"module", &module}, {"node", &node},
        {"args", &args},     {"rng_stream", &rng_stream}, {"slot", &slot},       {"direction", &direction}, {"status", &status},
        {"dtype", &dtype},   {"shape", &shape},        {"strides", &strides},     {"device", &device}, {"name", &name}};
    for (const auto& [name_of, text] : columns) {
      if (name_of == column) return *text;
    }
    throw std::out_of_range("no text column " + std::string(column));
  }

  static void bind(pybind11::module_& module);
};

// UTF-8 of a Python text; lone surrogates become backslash escapes, as trace/salvage.py stores them. With the GIL.
inline std::string utf8(pybind11::handle text) {
  Py_ssize_t size = 0;
  const char* bytes = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
  if (bytes != nullptr) return {bytes, static_cast<size_t>(size)};
  PyErr_Clear();
  auto escaped = pybind11::reinterpret_steal<pybind11::object>(PyUnicode_AsEncodedString(text.ptr(), "utf-8", "backslashreplace"));
  if (!escaped) throw pybind11::error_already_set();
  return {PyBytes_AS_STRING(escaped.ptr()), static_cast<size_t>(PyBytes_GET_SIZE(escaped.ptr()))};
}

inline void Texts::bind(pybind11::module_& module) {
  namespace py = pybind11;
  py::class_<Texts, std::shared_ptr<Texts>>(module, "Texts")
      .def(py::init<>())
      .def("code", [](Texts& self, const std::string& column, const py::str& text) { return self.of(column).code(utf8(text)); },
           py::arg("column"), py::arg("text"))
      .def("text", [](Texts& self, const std::string& column, Code code) { return self.of(column).text(code); },
           py::arg("column"), py::arg("code"))
      .def("size", [](Texts& self, const std::string& column) { return self.of(column).size(); }, py::arg("column"));
}

}  // namespace opguard
