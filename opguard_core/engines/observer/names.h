// Which storage is which parameter, gradient, buffer or optimizer state, and the slots of the state boundary. Mirrors what names.py and
// state.py do in every step: `refresh`, `refresh_optimizer`, `_fill`. names.py stays the only one that gives names; it hands its tables
// over when they have changed.
//
// Everything here is called with the GIL. Python runs in between only for tensors that are not plain memory and for numbers.
#pragma once

#include <ATen/core/Tensor.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/autograd/python_variable.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "outbox.h"
#include "probes.h"
#include "rows.h"
#include "storages_python.h"

namespace opguard {

// Rows of one state event: what a list of `trace.schema.SlotRow` is to Python's engine.
class StateRows {
 public:
  StateRows(std::shared_ptr<Texts> texts, int64_t seq) : seq(seq), texts_(std::move(texts)) {}

  void append(pybind11::handle row) { slots.rows.push_back(slot_of(*texts_, row, static_cast<uint64_t>(seq))); }

  // As `Outbox.close` with these rows, which are gone then. event: a `trace.schema.EventRow`.
  void close(Outbox& outbox, const EntryRef& entry, pybind11::handle event) {
    EventRow row;
    std::string error;
    try {
      row = event_of(outbox.texts(), event);
      if (row.seq != entry->seq) throw pybind11::value_error("an event carries the seq of another");
    } catch (pybind11::error_already_set& failure) {
      error = failure.what();
    } catch (const std::exception& failure) {
      error = std::string("ValueError: ") + failure.what();
    }
    SlotRows rows = std::move(slots.rows);
    pybind11::gil_scoped_release released;
    if (!error.empty()) return outbox.lose(entry, Loss::encode, error);
    outbox.close(entry, std::move(row), std::move(rows));
  }

  const int64_t seq;
  Slots slots;

 private:
  const std::shared_ptr<Texts> texts_;
};

class StateNames {
 public:
  explicit StateNames(std::shared_ptr<Probes> probes) : probes_(std::move(probes)) {}

  // Python need not see each call of a module: set once it has no more questions to a model (the contract is settled).
  bool settled = false;

  // Take over the tables of `Names`: (weak reference, name) of each parameter in order of naming, (weak reference, path) of each module.
  // Cost: about 0.5 us for each that is new.
  void set(const pybind11::list& parameters, const pybind11::list& modules);

  // `Names.refresh` and `Names.refresh_optimizer`. Cost: about 0.15 us a tensor.
  void refresh();
  void refresh_optimizer(const pybind11::object& optimizer, int64_t number);

  // `StateBoundary._fill`. optimizers: (optimizer, number) in order of first sight. number_row: (seq, slot, number) -> SlotRow.
  // Cost: about 0.5 us a tensor whose digest is known, and the fingerprints of the others.
  void fill(StateRows& rows, const pybind11::list& optimizers, const pybind11::function& number_row);

  // Whether every parameter of an optimizer has a name.
  bool all_named(const pybind11::object& optimizer) const;
  // Bytes of the gradients that an optimizer is about to use.
  int64_t gradient_bytes(const pybind11::object& optimizer) const;
  // Path of a module by its address, as a word of these; null if it is not in the tables; see modules.h.
  Word* word_of(PyObject* module, Words& words);
  const std::shared_ptr<Texts>& shared_texts() const { return probes_->storages().shared_texts(); }

 private:
  struct Key {
    pybind11::object key;  // held: its address is its identity
    Code code;             // of the slot, and
    Code label;            // of the storage's name: the same text
  };
  struct Owner {
    pybind11::object reference;
    PyObject* address;
    std::string name;  // or path
    Code code = NO_TEXT, label = NO_TEXT, gradient_code = NO_TEXT, gradient_label = NO_TEXT;
    std::vector<Key> keys;
    const Words* words = nullptr;  // of which `word` is one
    Word* word = nullptr;
  };
  using Owners = std::vector<Owner>;
  using Index = std::unordered_map<PyObject*, size_t>;

  void take(const pybind11::list& given, Owners& owners, Index& index);
  Owner* parameter_of(PyObject* parameter);

  // What a weak reference refers to, null if that is gone.
  static pybind11::object alive(const pybind11::object& reference) {
#if PY_VERSION_HEX >= 0x030D0000
    PyObject* found = nullptr;
    if (PyWeakref_GetRef(reference.ptr(), &found) < 0) throw pybind11::error_already_set();
    return pybind11::reinterpret_steal<pybind11::object>(found);
#else
    PyObject* const found = PyWeakref_GetObject(reference.ptr());
    if (found == nullptr) throw pybind11::error_already_set();
    return found == Py_None ? pybind11::object() : pybind11::reinterpret_borrow<pybind11::object>(found);
#endif
  }

  // Items of a dictionary, held: a program's code may change it meanwhile.
  using Items = std::vector<std::pair<pybind11::object, pybind11::object>>;
  static void items_of(PyObject* dictionary, Items& items) {
    items.clear();
    if (dictionary == nullptr || !PyDict_Check(dictionary)) return;
    PyObject *key, *value;
    for (Py_ssize_t at = 0; PyDict_Next(dictionary, &at, &key, &value);) {
      items.emplace_back(pybind11::reinterpret_borrow<pybind11::object>(key), pybind11::reinterpret_borrow<pybind11::object>(value));
    }
  }

  // The plain dictionary of an object, whatever its class makes of the name.
  static pybind11::object attributes_of(const pybind11::object& object) {
    PyObject* const found = PyObject_GenericGetDict(object.ptr(), nullptr);
    if (found == nullptr) throw pybind11::error_already_set();
    return pybind11::reinterpret_steal<pybind11::object>(found);
  }
  // Interned, never let go of.
  static PyObject* word(const char* text) { return PyUnicode_InternFromString(text); }
  static PyObject* in(const pybind11::object& dictionary, PyObject* key) {
    if (!PyDict_Check(dictionary.ptr())) return nullptr;
    PyObject* const found = PyDict_GetItemWithError(dictionary.ptr(), key);
    if (found == nullptr && PyErr_Occurred()) throw pybind11::error_already_set();
    return found;
  }

  // Slot and name of one entry below an owner: "optim:<name>.<key>".
  Key key_of(const char* kind, const std::string& owner, const pybind11::object& key) {
    std::string text = std::string(kind) + owner + (owner.empty() ? "" : ".") + utf8(key);
    return {key, probes_->texts().slot.of(text), probes_->texts().name.of(text)};
  }
  const Key& known_key(const char* kind, Owner& owner, const pybind11::object& key) {
    for (const Key& known : owner.keys) {
      if (known.key.ptr() == key.ptr()) return known;
    }
    if (owner.keys.size() >= kKeys) owner.keys.clear();  // keys made anew in every step
    return owner.keys.emplace_back(key_of(kind, owner.name, key));
  }
  static constexpr size_t kKeys = 32;

  // Each entry of an optimizer's state: see(key, value), in the order of `Names.optimizer_state`.
  template <class See>
  void each_state(const pybind11::object& optimizer, int64_t number, See&& see);
  template <class See>
  static void each_parameter(const pybind11::object& optimizer, See&& see);
  // Each buffer, read from the modules: see(key, tensor).
  template <class See>
  void each_buffer(See&& see);

  void label(const at::Tensor& tensor, Code label, bool gradient = false);
  void slot(StateRows& rows, Code path, const at::Tensor& tensor) {
    probes_->state(rows.slots, rows.seq, path, tensor);
    if (rows.slots.batch.size() >= kAtOnce) probes_->launch(rows.slots);
  }
  static constexpr size_t kAtOnce = 64;  // of one launch

  const std::shared_ptr<Probes> probes_;
  Owners parameters_, modules_;
  Index parameter_at_, module_at_;
  size_t next_parameter_ = 0;  // that an optimizer will probably name next: most have them in the order of the model
  size_t num_rows_ = 0;        // of the last state event
};

inline void StateNames::take(const pybind11::list& given, Owners& owners, Index& index) {
  Owners before = std::move(owners);
  owners = Owners();
  owners.reserve(given.size());
  Index places;
  for (size_t at = 0; at < given.size(); ++at) {
    const auto pair = pybind11::reinterpret_borrow<pybind11::tuple>(given[at]);
    const pybind11::object reference = pair[0];
    const pybind11::object referent = alive(reference);
    if (!referent) continue;
    std::string name = utf8(pair[1]);
    const auto known = index.find(referent.ptr());
    if (known != index.end() && before[known->second].reference.is(reference) && before[known->second].name == name) {
      owners.push_back(std::move(before[known->second]));
    } else {
      owners.push_back({reference, referent.ptr(), std::move(name)});
    }
    places[referent.ptr()] = owners.size() - 1;
  }
  index = std::move(places);
}

inline void StateNames::set(const pybind11::list& parameters, const pybind11::list& modules) {
  take(parameters, parameters_, parameter_at_);
  next_parameter_ = 0;
  take(modules, modules_, module_at_);
  Texts& texts = probes_->texts();
  for (Owner& owner : parameters_) {
    if (owner.code != NO_TEXT) continue;
    owner.code = texts.slot.of("param:" + owner.name);
    owner.label = texts.name.of("param:" + owner.name);
    owner.gradient_code = texts.slot.of("grad:" + owner.name);
    owner.gradient_label = texts.name.of("grad:" + owner.name);
  }
}

inline StateNames::Owner* StateNames::parameter_of(PyObject* parameter) {
  size_t at = next_parameter_;
  if (at >= parameters_.size() || parameters_[at].address != parameter) {
    const auto found = parameter_at_.find(parameter);
    if (found == parameter_at_.end()) return nullptr;
    at = found->second;
  }
  next_parameter_ = at + 1 < parameters_.size() ? at + 1 : 0;
  Owner& owner = parameters_[at];
  const pybind11::object referent = alive(owner.reference);
  return referent && referent.ptr() == parameter ? &owner : nullptr;
}

inline Word* StateNames::word_of(PyObject* module, Words& words) {
  const auto found = module_at_.find(module);
  if (found == module_at_.end()) return nullptr;
  Owner& owner = modules_[found->second];
  const pybind11::object referent = alive(owner.reference);
  if (!referent || referent.ptr() != module) return nullptr;
  if (owner.words != &words) {
    owner.word = words.of(owner.name);
    owner.words = &words;
  }
  return owner.word;
}

inline void StateNames::label(const at::Tensor& tensor, Code label, bool gradient) {
  if (!is_plain(tensor)) return;
  Storage* record = probes_->storages().of(tensor, probes_->storages().seq());
  const Code now = record->name();
  if (now != label) {
    // Flat buffers (FSDP, DDP buckets) hold many: the first name stands.
    const auto kind = [&](Code code) {
      const std::string& text = probes_->texts().name.text(code);
      return std::string_view(text).substr(0, text.find(':'));
    };
    if (now == EMPTY_TEXT || kind(now) != kind(label)) record->set_name(label);
  }
  if (gradient) record->gradient = true;
}

template <class See>
void StateNames::each_parameter(const pybind11::object& optimizer, See&& see) {
  namespace py = pybind11;
  int64_t group_index = 0;
  for (const py::handle group : optimizer.attr("param_groups")) {
    int64_t index = 0;
    const py::object parameters = group["params"];
    if (PyList_CheckExact(parameters.ptr())) {
      for (; index < PyList_GET_SIZE(parameters.ptr()); ++index) {
        see(py::reinterpret_borrow<py::object>(PyList_GET_ITEM(parameters.ptr(), index)), group_index, index);
      }
    } else {
      for (const py::handle parameter : parameters) see(py::reinterpret_borrow<py::object>(parameter), group_index, index++);
    }
    ++group_index;
  }
}

template <class See>
void StateNames::each_state(const pybind11::object& optimizer, int64_t number, See&& see) {
  namespace py = pybind11;
  const py::object attributes = attributes_of(optimizer);
  static PyObject* const name = word("state");
  PyObject* found = in(attributes, name);
  if (found == nullptr || PyObject_IsTrue(found) != 1) return;
  const py::object state = py::reinterpret_borrow<py::object>(found);
  Items items;
  Py_ssize_t next = 0;  // mostly the state has the parameters in their order: to look one up calls Python's `Tensor.__hash__`
  each_parameter(optimizer, [&](const py::object& parameter, int64_t group_index, int64_t index) {
    if (!THPVariable_Check(parameter.ptr())) return;
    py::object entries;
    if (PyDict_Check(state.ptr())) {
      PyObject *key = nullptr, *there = nullptr;
      Py_ssize_t after = next;
      if (PyDict_Next(state.ptr(), &after, &key, &there) && key == parameter.ptr()) {
        next = after;
      } else {
        there = in(state, parameter.ptr());
      }
      if (there != nullptr) entries = py::reinterpret_borrow<py::object>(there);
    } else {
      entries = state.attr("get")(parameter);
    }
    if (!entries || !PyDict_Check(entries.ptr())) return;
    items_of(entries.ptr(), items);
    Owner* owner = parameter_of(parameter.ptr());
    const std::string unnamed =
        owner != nullptr ? std::string() : "optimizer" + std::to_string(number) + "." + std::to_string(group_index) + "." + std::to_string(index);
    for (const auto& [key, value] : items) {
      if (!PyUnicode_Check(key.ptr())) continue;
      if (owner != nullptr) see(known_key("optim:", *owner, key), value);
      else see(key_of("optim:", unnamed, key), value);
    }
  });
}

template <class See>
void StateNames::each_buffer(See&& see) {
  Items items;
  for (Owner& owner : modules_) {
    const pybind11::object module = alive(owner.reference);
    if (!module) continue;
    const pybind11::object attributes = attributes_of(module);
    static PyObject* const name = word("_buffers");
    PyObject* buffers = in(attributes, name);
    if (buffers == nullptr || (PyDict_CheckExact(buffers) && PyDict_GET_SIZE(buffers) == 0)) continue;
    items_of(buffers, items);
    for (const auto& [key, value] : items) {
      if (THPVariable_Check(value.ptr())) see(known_key("buffer:", owner, key), THPVariable_Unpack(value.ptr()));
    }
  }
}

inline void StateNames::refresh() {
  for (const Owner& owner : parameters_) {
    const pybind11::object parameter = alive(owner.reference);
    if (!parameter) continue;
    const at::Tensor& tensor = THPVariable_Unpack(parameter.ptr());
    label(tensor, owner.label);
    if (!tensor.is_leaf()) continue;
    const at::Tensor& gradient = tensor.grad();
    if (gradient.defined()) label(gradient, owner.gradient_label, true);
  }
  each_buffer([&](const Key& key, const at::Tensor& buffer) { label(buffer, key.label); });
}

inline void StateNames::refresh_optimizer(const pybind11::object& optimizer, int64_t number) {
  each_state(optimizer, number, [&](const Key& key, const pybind11::object& value) {
    if (THPVariable_Check(value.ptr())) label(THPVariable_Unpack(value.ptr()), key.label);
  });
}

inline void StateNames::fill(StateRows& rows, const pybind11::list& optimizers, const pybind11::function& number_row) {
  namespace py = pybind11;
  const CameWithGil came;
  rows.slots.rows.reserve(num_rows_ + 8);
  std::vector<std::pair<Code, at::Tensor>> gradients;
  std::vector<std::pair<Code, py::object>> parameters;  // held: a slot may enter Python
  for (const Owner& owner : parameters_) {
    if (py::object parameter = alive(owner.reference)) {
      const at::Tensor& tensor = THPVariable_Unpack(parameter.ptr());
      if (tensor.is_leaf() && tensor.grad().defined()) gradients.emplace_back(owner.gradient_code, tensor.grad());
      parameters.emplace_back(owner.code, std::move(parameter));
    }
  }
  for (const auto& [code, parameter] : parameters) slot(rows, code, THPVariable_Unpack(parameter.ptr()));
  for (const auto& [code, gradient] : gradients) slot(rows, code, gradient);
  for (const py::handle given : optimizers) {
    const auto pair = py::reinterpret_borrow<py::tuple>(given);
    each_state(pair[0], pair[1].cast<int64_t>(), [&](const Key& key, const py::object& value) {
      const Code code = key.code;
      if (THPVariable_Check(value.ptr())) {
        slot(rows, code, THPVariable_Unpack(value.ptr()));
      } else if (PyLong_Check(value.ptr()) || PyFloat_Check(value.ptr())) {
        rows.append(number_row(rows.seq, probes_->texts().slot.text(code), value));
      }
    });
  }
  each_buffer([&](const Key& key, const at::Tensor& buffer) { slot(rows, key.code, buffer); });
  probes_->launch(rows.slots);
  num_rows_ = rows.slots.rows.size();
}

inline bool StateNames::all_named(const pybind11::object& optimizer) const {
  bool all = true;
  each_parameter(optimizer, [&](const pybind11::object& parameter, int64_t, int64_t) {
    if (all && THPVariable_Check(parameter.ptr())) all = const_cast<StateNames*>(this)->parameter_of(parameter.ptr()) != nullptr;
  });
  return all;
}

inline int64_t StateNames::gradient_bytes(const pybind11::object& optimizer) const {
  int64_t total = 0;
  each_parameter(optimizer, [&](const pybind11::object& parameter, int64_t, int64_t) {
    if (!THPVariable_Check(parameter.ptr())) return;
    const at::Tensor& tensor = THPVariable_Unpack(parameter.ptr());
    if (tensor.is_leaf() && tensor.grad().defined()) total += tensor.grad().numel() * static_cast<int64_t>(tensor.grad().element_size());
  });
  return total;
}

inline void bind_names(pybind11::module_& module) {
  namespace py = pybind11;
  py::class_<StateRows, std::shared_ptr<StateRows>>(module, "StateRows")
      .def("append", &StateRows::append, py::arg("row"))
      .def("close", &StateRows::close, py::arg("outbox"), py::arg("entry"), py::arg("event"));
  py::class_<StateNames, std::shared_ptr<StateNames>>(module, "StateNames")
      .def(py::init<std::shared_ptr<Probes>>(), py::arg("probes"))
      .def_readwrite("settled", &StateNames::settled)
      .def("set", &StateNames::set, py::arg("parameters"), py::arg("modules"))
      .def("refresh", &StateNames::refresh)
      .def("refresh_optimizer", &StateNames::refresh_optimizer, py::arg("optimizer"), py::arg("number"))
      .def("rows", [](const StateNames& self, int64_t seq) { return std::make_shared<StateRows>(self.shared_texts(), seq); }, py::arg("seq"))
      .def("fill", &StateNames::fill, py::arg("rows"), py::arg("optimizers"), py::arg("number_row"))
      .def("all_named", &StateNames::all_named, py::arg("optimizer"))
      .def("gradient_bytes", &StateNames::gradient_bytes, py::arg("optimizer"));
}

}  // namespace opguard
