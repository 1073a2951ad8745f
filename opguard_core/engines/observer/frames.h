// The Python frames of the calling thread, read without the GIL.
//
// A thread's frame chain is changed by that thread alone, and each frame holds its code object: while a thread is inside an operator
// its own chain stands still, whoever has the GIL. Layouts are those of the headers this is compiled against, which are the running
// interpreter's own; without them, and on other versions, `READS_FRAMES` is false and callers take the GIL.
// Source: CPython Include/internal/pycore_frame.h (3.11, 3.12, 3.13), Objects/frameobject.c `PyFrame_GetBack`, `frame_getlasti`.
#pragma once

#include <Python.h>

#include <cstdint>
#include <vector>

#if PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x030E0000 && !defined(Py_GIL_DISABLED) && !defined(PYPY_VERSION) && \
    !defined(OPGUARD_NO_INTERNAL_FRAMES)
#if __has_include("internal/pycore_frame.h")
#define OPGUARD_READS_FRAMES 1
#ifndef Py_BUILD_CORE
#define Py_BUILD_CORE 1
#include "internal/pycore_frame.h"
#undef Py_BUILD_CORE
#else
#include "internal/pycore_frame.h"
#endif
#endif
#endif

namespace opguard {

// Innermost first, two words a frame: address of the code object, instruction.
using FrameKey = std::vector<uint64_t>;

#ifdef OPGUARD_READS_FRAMES

inline constexpr bool READS_FRAMES = true;
inline constexpr const char* WHY_NO_FRAMES = "";

// Calls `see(code, instruction)` for each frame of the calling thread, innermost first, until it answers false.
template <class See>
void each_frame(See see) {
  const PyThreadState* state = PyGILState_GetThisThreadState();
  if (state == nullptr) return;  // Python has never been on this thread
#if PY_VERSION_HEX >= 0x030D0000
  _PyInterpreterFrame* frame = state->current_frame;
#else
  _PyInterpreterFrame* frame = state->cframe == nullptr ? nullptr : state->cframe->current_frame;
#endif
  for (; frame != nullptr; frame = frame->previous) {
    if (_PyFrame_IsIncomplete(frame)) continue;  // not begun yet, or the interpreter's own
#if PY_VERSION_HEX >= 0x030D0000
    const auto code = reinterpret_cast<uint64_t>(_PyFrame_GetCode(frame));
#else
    const auto code = reinterpret_cast<uint64_t>(frame->f_code);
#endif
    if (!see(code, static_cast<uint64_t>(static_cast<uint32_t>(_PyInterpreterFrame_LASTI(frame))))) return;
  }
}

// Fills `key` with the frames of the calling thread; returns their hash, which is 0 for none.
// Cost: about 3 ns a frame, mostly waiting for memory.
inline uint64_t read_frames(FrameKey& key) {
  key.clear();
  uint64_t hash = 0;
  each_frame([&](uint64_t code, uint64_t instruction) {
    key.push_back(code);
    key.push_back(instruction);
    hash = (hash ^ code ^ (instruction << 48) ^ instruction) * 0x9E3779B97F4A7C15ULL;
    hash ^= hash >> 29;
    return true;
  });
  return hash;
}

#else

inline constexpr bool READS_FRAMES = false;
#if PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x030E0000
inline constexpr const char* WHY_NO_FRAMES = "this Python came without its internal headers: stacks are read with the interpreter lock";
#else
inline constexpr const char* WHY_NO_FRAMES = "frames of this version of Python are read with the interpreter lock";
#endif
template <class See>
void each_frame(See) {}
inline uint64_t read_frames(FrameKey& key) {
  key.clear();
  return 0;
}

#endif

}  // namespace opguard
