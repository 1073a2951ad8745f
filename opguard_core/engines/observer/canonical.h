// Canonical text of an operator's non-tensor arguments. Mirrors canonical.py: the same text for the value that Python would get.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/core/MemoryFormat.h>
#include <c10/core/ScalarType.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/DynamicTypes.h>

#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "operators.h"

namespace opguard {

// Source: canonical._DTYPES (c10/core/ScalarType.h, order of the enum).
inline constexpr std::array<const char*, 30> kDtypes = {
    "uint8",      "int8",         "int16",         "int32",           "int64",   "float16", "float32", "float64", "complex32", "complex64",
    "complex128", "bool",         "qint8",         "quint8",          "qint32",  "bfloat16", "quint4x2", "quint2x4", "bits1x8",  "bits2x4",
    "bits4x2",    "bits8",        "bits16",        "float8_e5m2",     "float8_e4m3fn", "float8_e5m2fnuz", "float8_e4m3fnuz", "uint16", "uint32", "uint64"};
inline constexpr size_t kShortText = 200;

// A value that only Python can write: the caller asks canonical.py.
struct NeedsPython {};

inline void write_int(std::string& text, int64_t value) {
  char digits[24];
  auto end = std::to_chars(digits, digits + sizeof digits, value).ptr;
  text.append(digits, static_cast<size_t>(end - digits));
}

// As Python's `float.hex`.
inline void write_hex(std::string& text, double value) {
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  if (std::isnan(value)) {
    text += "nan";
    return;
  }
  if (bits >> 63) text += '-';
  if (std::isinf(value)) {
    text += "inf";
    return;
  }
  const uint64_t fraction = bits & ((uint64_t{1} << 52) - 1);
  int exponent = static_cast<int>((bits >> 52) & 0x7ff);
  if (exponent == 0 && fraction == 0) {
    text += "0x0.0p+0";
    return;
  }
  text += exponent == 0 ? "0x0." : "0x1.";
  exponent = exponent == 0 ? -1022 : exponent - 1023;
  for (int shift = 48; shift >= 0; shift -= 4) text += "0123456789abcdef"[(fraction >> shift) & 15];
  text += 'p';
  text += exponent < 0 ? '-' : '+';
  write_int(text, exponent < 0 ? -exponent : exponent);
}

// As Python's `repr` of a text, where that is the text in single quotes.
inline void write_text(std::string& text, std::string_view value) {
  bool plain = true;
  for (const char letter : value) plain = plain && letter >= ' ' && letter <= '~' && letter != '\'' && letter != '\\';
  if (!plain) throw NeedsPython{};
  if (value.size() > kShortText) {
    text += "str[";
    write_int(text, static_cast<int64_t>(value.size()));
    text += ']';
  } else {
    text += '\'';
    text += value;
    text += '\'';
  }
}

// canonical.canonical of what Python would get for this value.
inline void write_canonical(std::string& text, const c10::IValue& value) {
  if (value.isNone()) {
    text += "None";
  } else if (value.isBool()) {
    text += value.toBool() ? "True" : "False";
  } else if (value.isInt()) {
    write_int(text, value.toInt());
  } else if (value.isDouble()) {
    write_hex(text, value.toDouble());
  } else if (value.isComplexDouble()) {
    const auto number = value.toComplexDouble();
    text += "complex(";
    write_hex(text, number.real());
    text += ',';
    write_hex(text, number.imag());
    text += ')';
  } else if (value.isString()) {
    write_text(text, value.toStringView());
  } else if (is_number(value)) {
    const at::Tensor& tensor = value.toTensor();
    if (!tensor.device().is_cpu()) throw NeedsPython{};
    switch (tensor.scalar_type()) {
      case at::kDouble:
        return write_hex(text, *tensor.const_data_ptr<double>());
      case at::kLong:
        return write_int(text, *tensor.const_data_ptr<int64_t>());
      case at::kBool:
        text += *tensor.const_data_ptr<bool>() ? "True" : "False";
        return;
      case at::kComplexDouble:
        return write_canonical(text, c10::IValue(*tensor.const_data_ptr<c10::complex<double>>()));
      default:
        throw NeedsPython{};
    }
  } else if (value.isTensor()) {
    text += value.toTensor().defined() ? "Tensor" : "None";
  } else if (value.isSymInt()) {
    auto number = value.toSymInt().maybe_as_int();
    if (!number) throw NeedsPython{};
    write_int(text, *number);
  } else if (value.isIntList()) {
    text += '[';
    bool first = true;
    for (const int64_t item : value.toIntList()) {
      if (!first) text += ',';
      first = false;
      write_int(text, item);
    }
    text += ']';
  } else if (value.isList()) {
    text += '[';
    bool first = true;
    for (const c10::IValue& item : value.toListRef()) {
      if (!first) text += ',';
      first = false;
      write_canonical(text, item);
    }
    text += ']';
  } else if (value.isTuple()) {
    text += '[';
    bool first = true;
    for (const c10::IValue& item : value.toTupleRef().elements()) {
      if (!first) text += ',';
      first = false;
      write_canonical(text, item);
    }
    text += ']';
  } else {
    throw NeedsPython{};
  }
}

// canonical.argument_text.
inline void write_argument(std::string& text, const PlainArgument& argument, const c10::IValue& value) {
  const size_t start = text.size();
  text += argument.prefix;
  if (value.isInt() && argument.writing != Writing::plain) {
    const int64_t number = value.toInt();
    switch (argument.writing) {
      case Writing::dtype:
      case Writing::dtype_number:
        if (number >= 0 && number < static_cast<int64_t>(kDtypes.size())) {
          text += kDtypes[static_cast<size_t>(number)];
        } else if (argument.writing == Writing::dtype) {
          text.resize(start);
          throw NeedsPython{};
        } else {
          text += "dtype#";
          write_int(text, number);
        }
        return;
      case Writing::memory_format:
        switch (static_cast<c10::MemoryFormat>(number)) {
          case c10::MemoryFormat::Contiguous:
            text += "contiguous_format";
            return;
          case c10::MemoryFormat::Preserve:
            text += "preserve_format";
            return;
          case c10::MemoryFormat::ChannelsLast:
            text += "channels_last";
            return;
          case c10::MemoryFormat::ChannelsLast3d:
            text += "channels_last_3d";
            return;
          default:
            break;
        }
        [[fallthrough]];
      default:
        text.resize(start);
        throw NeedsPython{};
    }
  }
  try {
    write_canonical(text, value);
  } catch (const NeedsPython&) {
    text.resize(start);
    throw;
  }
}

// canonical.argument_text of a Python number or None; `ask` writes what is neither: "name=text". With the GIL.
template <class Ask>
void write_python_argument(std::string& text, const std::string& name, PyObject* value, Ask&& ask) {
  const bool is_whole = PyLong_CheckExact(value) != 0 && name.find("dtype") == std::string::npos;
  int overflows = 0;
  const int64_t number = is_whole ? PyLong_AsLongLongAndOverflow(value, &overflows) : 0;
  const bool is_float = PyFloat_CheckExact(value) != 0;
  if ((!is_whole || overflows != 0) && !is_float && value != Py_None && PyBool_Check(value) == 0) {
    text += ask();
    return;
  }
  text += name;
  text += '=';
  write_canonical(text, value == Py_None          ? c10::IValue()
                        : PyBool_Check(value) != 0 ? c10::IValue(value == Py_True)
                        : is_float                 ? c10::IValue(PyFloat_AS_DOUBLE(value))
                                                   : c10::IValue(number));
}

// A value as a dispatch mode gets it (torch/csrc/autograd/python_variable.cpp, parseIValuesToPyArgsKwargs). With the GIL.
pybind11::object to_python(const c10::IValue& value, Writing writing);

// Whether a caller's value is the schema's default, as torch tells it.
inline bool is_default(const c10::Argument& argument, const c10::IValue& value) {
  const auto& standard = argument.default_value();
  return standard.has_value() && *standard == value;
}

// OperatorPlan.arguments: schema defaults filled in. `ask` writes what only Python can: (argument, value) -> "name=text".
template <class Ask>
void write_arguments(std::string& text, const OperatorPlan& plan, const c10::FunctionSchema& schema, c10::ArrayRef<c10::IValue> values, Ask&& ask) {
  bool first = true;
  for (const PlainArgument& argument : plan.plain) {
    const c10::IValue& value = values[argument.position];
    if (argument.default_text.empty()) {
      // A tensor's place: only a number there is a plain argument.
      if (value.isNone() || (value.isTensor() && !is_number(value))) continue;
    }
    if (!first) text += ';';
    first = false;
    // Python does not get a default; its text was made from the schema, where a dtype may be a number.
    if (argument.writing == Writing::layout || argument.writing == Writing::memory_format) {
      if (is_default(schema.arguments()[argument.position], value)) {
        text += argument.default_text;
        continue;
      }
    }
    try {
      write_argument(text, argument, value);
    } catch (const NeedsPython&) {
      text += ask(argument, value);
    }
  }
}

}  // namespace opguard
