// Saying what ProcessGroupNCCL says, as if from its file.
#pragma once

#include <c10/util/Exception.h>
#include <c10/util/Logging.h>

#include <chrono>

// Lines of the file that users see these words come from.
#define TELL(severity, line)                                                                                       \
  c10::MessageLogger(c10::SourceLocation{__func__, "ProcessGroupNCCL.cpp", line}, c10::GLOG_##severity).stream()

namespace emu {

// As if it were raised there: its text has the place.
inline std::exception_ptr backend_error(const char* function, int line, const std::string& message) {
  constexpr auto file = "/pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp";
  const c10::SourceLocation place{function, file, static_cast<uint32_t>(line)};
  return std::make_exception_ptr(c10::DistBackendError(place, message));
}

inline long millis_since(std::chrono::steady_clock::time_point since) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - since).count();
}

} // namespace emu
