// The recorder of all groups of this process, as torch's worker server gives it to whoever asks.
#include "process_group.h"

#include <torch/csrc/distributed/c10d/control_plane/Handlers.hpp>

namespace emu {

std::string dump_json(bool with_entries, bool only_active) {
  return Recorder::get()->dump_json(std::nullopt, with_entries, only_active);
}

std::string dump_pickle(bool with_entries, bool with_stacks, bool only_active) {
  return Recorder::get()->dump(std::nullopt, with_entries, with_stacks, only_active);
}

namespace {

bool parameter(const c10d::control_plane::Request& request, const std::string& name, bool unset) {
  const auto value = request.getParam(name);
  return value.empty() ? unset : value == "true";
}

// torch's worker server finds them by these names, on CUDA builds those of ProcessGroupNCCL.
const c10d::control_plane::RegisterHandler json_handler{
    "dump_nccl_trace_json", [](const c10d::control_plane::Request& request, c10d::control_plane::Response& response) {
      response.setContent(
          dump_json(parameter(request, "includecollectives", true), parameter(request, "onlyactive", false)),
          "application/json");
      response.setStatus(200);
    }};

const c10d::control_plane::RegisterHandler pickle_handler{
    "dump_nccl_trace_pickle", [](const c10d::control_plane::Request& request, c10d::control_plane::Response& response) {
      response.setContent(
          dump_pickle(
              parameter(request, "includecollectives", true),
              parameter(request, "includestacktraces", true),
              parameter(request, "onlyactive", false)),
          "application/octet-stream");
      response.setStatus(200);
    }};

} // namespace

} // namespace emu
