#include "device.h"

#include <Python.h>

#include <c10/util/Exception.h>
#include <c10/util/thread_name.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <optional>

#include <ATen/core/LegacyTypeDispatch.h>

namespace emu {

namespace {

thread_local int64_t current_stream = 0;

long setting(const char* name, long unset) {
  const char* value = std::getenv(name);
  return value == nullptr || *value == 0 ? unset : std::atol(value);
}

} // namespace

// Asks ever more seldom: what has taken long may be seen a twentieth of that later, and costs nothing meanwhile.
void sleep_until(const std::function<bool()>& is_over) {
  const double began_s = now_s();
  while (!is_over()) {
    const double wait_s = std::clamp((now_s() - began_s) / 20, 1e-4, 2e-2);
    std::this_thread::sleep_for(std::chrono::duration<double>(wait_s));
  }
}

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void wait_for(const std::function<bool()>& is_over) {
  if (!Device::get().spins) {
    sleep_until(is_over);
    return;
  }
  for (unsigned round = 1; !is_over(); ++round) {
    // So that two ranks that spin on one core still get on.
    if (round % 4096 == 0) {
      std::this_thread::yield();
    }
  }
}

// Streams ---------------------------------------------------------------------------------------------------------

// Threads are never joined: a device does not end because the process wants to, and the operation may hang for good.
Stream::Stream(int64_t id) : id(id) {
  std::thread([this] { run(); }).detach();
}

void Stream::run() {
  c10::setThreadName("emu_stream" + std::to_string(id));
  // What runs here are kernels: neither autograd nor its views are wanted.
  at::AutoDispatchBelowADInplaceOrView guard;
  while (true) {
    Op op;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [this] { return !queue_.empty(); });
      op = std::move(queue_.front());
      queue_.pop_front();
    }
    if (Device::get().is_broken()) {
      Device::hang();
    }
    try {
      op();
    } catch (const std::exception&) {
      // A kernel that finds its input wrong, as an index out of range.
      Device::get().fail("CUDA error: device-side assert triggered");
      Device::hang();
    }
    op = nullptr; // Tensors go before anybody sees that it is done.
    std::lock_guard<std::mutex> lock(mutex_);
    --pending_;
  }
}

void Stream::launch(Op op) {
  auto& device = Device::get();
  device.check();
  if (device.capture(op)) {
    return;
  }
  auto has_room = [&] {
    device.check();
    std::lock_guard<std::mutex> lock(mutex_);
    return pending_ < device.queue_limit;
  };
  if (!has_room()) {
    std::optional<PyGILState_STATE> gil;
    if (device.launch_holds_gil && Py_IsInitialized()) {
      gil = PyGILState_Ensure();
    }
    wait_for(has_room);
    if (gil) {
      PyGILState_Release(*gil);
    }
  }
  std::lock_guard<std::mutex> lock(mutex_);
  ++pending_;
  queue_.push_back(std::move(op));
  changed_.notify_one();
}

bool Stream::query() {
  Device::get().check();
  std::lock_guard<std::mutex> lock(mutex_);
  return pending_ == 0;
}

void Stream::synchronize() {
  ++Device::get().waits;
  wait_for([this] { return query(); });
}

// Events ----------------------------------------------------------------------------------------------------------

std::shared_ptr<Event::Mark> Event::mark() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return mark_;
}

void Event::record(Stream& stream) {
  auto mark = std::make_shared<Mark>();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    mark_ = mark;
  }
  stream.launch([mark] {
    mark->at_s = now_s();
    mark->is_done = true;
  });
}

void Event::block(Stream& stream) const {
  auto mark = this->mark();
  if (mark == nullptr || mark->is_done) {
    return;
  }
  stream.launch([mark] { sleep_until([&] { return mark->is_done.load(); }); });
}

bool Event::query() const {
  auto& device = Device::get();
  ++device.queries;
  if (device.query_hangs) {
    Device::hang([&device] { return !device.query_hangs; });
  }
  device.check();
  auto mark = this->mark();
  return mark == nullptr || mark->is_done;
}

void Event::synchronize() const {
  ++Device::get().waits;
  auto mark = this->mark();
  wait_for([&] {
    Device::get().check();
    return mark == nullptr || mark->is_done;
  });
}

double Event::reached_s() const {
  auto mark = this->mark();
  return mark != nullptr && mark->is_done ? mark->at_s : 0;
}

// The device ------------------------------------------------------------------------------------------------------

Device::Device() : queue_limit(setting("EMU_QUEUE", 1024)), spins(setting("EMU_SPIN", 1) != 0) {
  launch_holds_gil = setting("EMU_LAUNCH_GIL", 0) != 0;
  comm_s = static_cast<double>(setting("EMU_COMM_S", 0));
  compares = setting("EMU_COMPARE", 0) != 0;
}

Device& Device::get() {
  static auto* device = new Device(); // Its threads live until the process ends.
  return *device;
}

void Device::hang(const std::function<bool()>& released) {
  sleep_until([&] { return released != nullptr && released(); });
}

void Device::fail(const std::string& text) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!is_broken_) {
    error_ = text;
    is_broken_ = true;
  }
}

void Device::check() {
  if (is_broken_) {
    // The words of c10/cuda/CUDAException.cpp.
    throw c10::AcceleratorError(
        {__func__, "CUDAException.cpp", 45},
        700,
        error_ +
            "\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below"
            " might be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
            "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n");
  }
}

// Streams and the order among them are those of the launches: replayed one after the other in one stream, every
// operation has what it waits for behind it.
void Device::begin_capture() {
  check();
  synchronize();
  std::lock_guard<std::mutex> lock(mutex_);
  graph_ = std::make_shared<Graph>();
  is_capturing_ = true;
}

std::shared_ptr<Graph> Device::end_capture() {
  std::lock_guard<std::mutex> lock(mutex_);
  is_capturing_ = false;
  return std::exchange(graph_, nullptr);
}

bool Device::capture(Op& op) {
  if (!is_capturing_) {
    return false;
  }
  std::lock_guard<std::mutex> lock(mutex_);
  if (graph_ == nullptr) {
    return false;
  }
  graph_->ops.push_back(std::move(op));
  return true;
}

void Device::replay(std::shared_ptr<Graph> graph) {
  current().launch([graph = std::move(graph)] {
    for (const auto& op : graph->ops) {
      op();
    }
  });
}

Stream& Device::stream(int64_t id) {
  std::lock_guard<std::mutex> lock(mutex_);
  while (static_cast<int64_t>(streams_.size()) <= id) {
    streams_.push_back(std::make_unique<Stream>(static_cast<int64_t>(streams_.size())));
  }
  return *streams_[id];
}

Stream& Device::new_stream() {
  stream(0);
  int64_t id = 0;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    id = static_cast<int64_t>(streams_.size());
  }
  return stream(id);
}

Stream& Device::current() {
  return stream(current_stream);
}

int64_t Device::exchange_current(int64_t id) {
  return std::exchange(current_stream, id);
}

void Device::synchronize() {
  size_t count = 0;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    count = streams_.size();
  }
  for (size_t id = 0; id < count; ++id) {
    stream(static_cast<int64_t>(id)).synchronize();
  }
}

} // namespace emu
