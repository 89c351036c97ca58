// What Python sees.
#include "process_group.h"

#include "memory.h"
#include "tensors.h"

#include <torch/csrc/utils/pybind.h>

namespace py = pybind11;
using emu::Device;
using emu::ProcessGroup;

namespace {

// A kernel: how long it runs, and what then happens to the device.
void launch_kernel(double seconds, const std::string& error) {
  Device::get().current().launch([seconds, error] {
    const double end_s = emu::now_s() + seconds;
    Device::hang([end_s] { return emu::now_s() >= end_s; });
    if (!error.empty()) {
      Device::get().fail(error);
      Device::hang();
    }
  });
}

// A kernel that runs until the host lets go: what is launched after it waits, however slow the host is.
void hold() {
  auto& device = Device::get();
  device.is_held = true;
  device.current().launch([&device] { Device::hang([&device] { return !device.is_held; }); });
}

void synchronize(bool holds_gil) {
  std::optional<py::gil_scoped_release> released;
  if (!holds_gil) {
    released.emplace();
  }
  Device::get().synchronize();
}

} // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  const auto without_gil = py::call_guard<py::gil_scoped_release>();
  auto c10d_module = py::module_::import("torch._C._distributed_c10d");

  py::class_<ProcessGroup, c10::intrusive_ptr<ProcessGroup>, c10d::Backend> group(module, "ProcessGroupNCCL");
  py::class_<ProcessGroup::Options, c10::intrusive_ptr<ProcessGroup::Options>, c10d::Backend::Options>(group, "Options")
      .def(py::init<bool>(), py::arg("is_high_priority_stream") = false)
      .def_readwrite("is_high_priority_stream", &ProcessGroup::Options::is_high_priority_stream)
      .def_readwrite("split_from", &ProcessGroup::Options::split_from)
      .def_readwrite("split_color", &ProcessGroup::Options::split_color);
  group.def(
      py::init<c10::intrusive_ptr<c10d::Store>, int, int, c10::intrusive_ptr<ProcessGroup::Options>>(),
      py::arg("store"),
      py::arg("rank"),
      py::arg("size"),
      py::arg("options"),
      without_gil);

  module.def("set_make_wire", [](py::function make) {
    // Leaked: streams may outlive the interpreter.
    auto* kept = new py::function(std::move(make));
    ProcessGroup::make_wire = [kept](c10::intrusive_ptr<c10d::Store> store, int rank, int size) {
      py::gil_scoped_acquire gil;
      return (*kept)(store, rank, size).cast<c10::intrusive_ptr<c10d::Backend>>();
    };
  });
  module.def("dump_json", &emu::dump_json, py::arg("with_entries") = true, py::arg("only_active") = false, without_gil);
  module.def(
      "dump_pickle",
      [](bool includeCollectives, bool includeStackTraces, bool onlyActive) {
        return py::bytes(emu::dump_pickle(includeCollectives, includeStackTraces, onlyActive));
      },
      py::arg("includeCollectives") = true,
      py::arg("includeStackTraces") = true,
      py::arg("onlyActive") = false);

  py::class_<emu::Graph, std::shared_ptr<emu::Graph>>(module, "Graph");
  module.def("begin_capture", [] { Device::get().begin_capture(); }, without_gil);
  module.def("end_capture", [] { return Device::get().end_capture(); }, without_gil);
  module.def("replay", [](std::shared_ptr<emu::Graph> graph) { Device::get().replay(std::move(graph)); }, without_gil);
  module.def("set_comm_s", [](double seconds) { Device::get().comm_s = seconds; });
  module.def("kernel", &launch_kernel, py::arg("seconds"), py::arg("error") = "", without_gil);
  module.def("hold", &hold, without_gil);
  module.def("release", [] { Device::get().is_held = false; });
  module.def("synchronize", &synchronize, py::arg("holds_gil") = false);
  module.def("is_idle", [] { return Device::get().current().query(); }, without_gil);
  module.def("break_device", [](const std::string& error) { Device::get().fail(error); });
  module.def("set_query_hangs", [](bool hangs) { Device::get().query_hangs = hangs; });
  module.def("set_link_is_dead", [](bool is_dead) { Device::get().link_is_dead = is_dead; });
  module.def("set_launch_holds_gil", [](bool holds) { Device::get().launch_holds_gil = holds; });
  module.def("set_others", [](size_t size) { emu::space().set_others(size); });
  module.def("count_waits", [] { return Device::get().waits.load(); });
  module.def("count_queries", [] { return Device::get().queries.load(); });
}
